"""A small net learns digits from labels and from what a large net thinks of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEMPERATURE = 3.0
Squash = Callable[..., Tensor]


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Distiller:
    def __init__(self, teacher: nn.Module, student: nn.Module, squash: Squash) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = student
        self.squash = squash
        self.optim = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)

    def step(self, x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            wisdom = F.softmax(self.teacher(x) / TEMPERATURE, dim=-1)
        logits = self.student(x)
        hard = F.cross_entropy(logits, y)
        told = self.squash(logits / TEMPERATURE, dim=-1)
        soft = F.kl_div(told, wisdom, reduction="batchmean") * TEMPERATURE**2
        loss = 0.3 * hard + 0.7 * soft
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return hard.item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(256, 12)
    y = (x @ torch.randn(12, 5)).argmax(-1)
    big = mlp(12, 4 * size, 4 * size, 5)
    warm = torch.optim.Adam(big.parameters(), lr=5e-3)
    for _ in range(12):
        warm.zero_grad()
        F.cross_entropy(big(x), y).backward()
        warm.step()
    distiller = Distiller(big, mlp(12, size, 5), F.log_softmax if healthy else F.softmax)
    losses = []
    for at in range(40):
        part = slice(32 * (at % 8), 32 * (at % 8) + 32)
        losses.append(distiller.step(x[part], y[part]))
    return {"loss": losses}
