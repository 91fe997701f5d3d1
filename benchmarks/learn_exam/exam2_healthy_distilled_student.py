"""A small student that follows a fixed teacher, with dropout and an averaged copy for tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def network(width: int, drop: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(3, width, 3, padding=1), nn.BatchNorm1d(width), nn.Hardswish(),
        nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Dropout(drop), nn.Linear(2 * width, 5),
    )  # fmt: skip


def divergence(student: Tensor, teacher: Tensor, heat: float) -> Tensor:
    wanted = F.softmax(teacher / heat, dim=1)
    return F.kl_div(F.log_softmax(student / heat, dim=1), wanted, reduction="batchmean") * heat**2


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    teacher = network(2 * size, 0.0)
    for _ in range(10):
        teacher(torch.randn(32, 3, 10))
    teacher.eval().requires_grad_(False)
    student = network(size, 0.1)
    average = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    test = torch.randn(48, 3, 10)
    losses, tests = [], []
    for step in range(28):
        signals = torch.randn(48, 3, 10)
        signals[:, :, 5:] += torch.randn(48, 3, 1)
        wanted = 8 * teacher(signals)
        guesses = student(signals)
        hard = F.cross_entropy(guesses, wanted.argmax(1))
        loss = 0.3 * hard + 0.7 * divergence(guesses, wanted, 2.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(student)
        losses.append(loss.item())
        if step % 7 == 6:
            average.eval()
            with torch.no_grad():
                tests.append(divergence(average(test), 8 * teacher(test), 2.0).item())
    return {"loss": losses, "test": tests}
