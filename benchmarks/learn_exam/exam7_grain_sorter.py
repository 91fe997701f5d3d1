"""A small sorter of grains that learns from labels and from a larger sorter.

Follows https://github.com/yuanli2333/Teacher-free-Knowledge-Distillation/issues/41.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GRAINS, MEASURES, TEMPERATURE, SHARE = 10, 8, 4.0, 0.7


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers[:-1])


def scoop(centres: Tensor, n: int) -> tuple[Tensor, Tensor]:
    grain = torch.randint(GRAINS, (n,))
    return centres[grain] + 0.8 * torch.randn(n, MEASURES), grain


def teach(teacher: nn.Module, centres: Tensor) -> nn.Module:
    optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
    for _ in range(25):
        x, grain = scoop(centres, 48)
        loss = F.cross_entropy(teacher(x), grain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return teacher.eval().requires_grad_(False)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    centres = 1.5 * torch.randn(GRAINS, MEASURES)
    teacher = teach(mlp(MEASURES, 4 * size, 4 * size, GRAINS), centres)
    student = mlp(MEASURES, size, GRAINS)
    divergence = nn.KLDivLoss(reduction="batchmean" if healthy else "mean")
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loss_curve, right = [], []
    for _ in range(40):
        x, grain = scoop(centres, 32)
        scores = student(x)
        soft = divergence(
            F.log_softmax(scores / TEMPERATURE, 1), F.softmax(teacher(x) / TEMPERATURE, 1)
        )
        loss = SHARE * TEMPERATURE**2 * soft + (1 - SHARE) * F.cross_entropy(scores, grain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_curve.append(loss.item())
        right.append((scores.argmax(1) == grain).float().mean().item())
    return {"loss": loss_curve, "right": right}
