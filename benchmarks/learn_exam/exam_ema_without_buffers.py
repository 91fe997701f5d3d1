"""The average covers parameters alone, so its batch norms keep the statistics of the start."""

from __future__ import annotations

import copy

import torch
from torch import nn


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, decay: float, buffers: bool) -> None:
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old.mul_(decay).add_(new, alpha=1 - decay)
    if buffers:
        for average, latest in zip(teacher.buffers(), student.buffers(), strict=True):
            average.copy_(latest)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    student = nn.Sequential(
        nn.Conv2d(1, size, 3),
        nn.BatchNorm2d(size),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * size, 3),
    )
    teacher = copy.deepcopy(student).eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9)
    images = torch.randn(60, 1, 6, 6) * 3 + 2
    labels = images.mean((1, 2, 3)).argsort().argsort() * 3 // 60
    losses, validation = [], []
    for _ in range(4):
        student.train()
        for rows in torch.randperm(60).split(12):
            loss = nn.functional.cross_entropy(student(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update_teacher(teacher, student, 0.8, buffers=healthy)
            losses.append(loss.item())
        with torch.no_grad():
            validation.append(nn.functional.cross_entropy(teacher(images), labels).item())
    return {"loss": losses, "validation": validation}
