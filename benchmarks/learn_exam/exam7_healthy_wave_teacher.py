"""Waves with few labels: a teacher, which is a slow average, says what the others should be."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLES, CLASSES, STEPS = 32, 3, 40


def waves(n: int) -> tuple[Tensor, Tensor]:
    label = torch.randint(CLASSES, (n,))
    at = torch.linspace(0, 6.28, SAMPLES)
    phase = 6.28 * torch.rand(n, 1)
    return ((label[:, None] + 1) * at + phase).sin()[:, None], label


def blurred(wave: Tensor) -> Tensor:
    return wave * (0.8 + 0.4 * torch.rand(len(wave), 1, 1)) + 0.3 * torch.randn_like(wave)


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, width, 5, padding=2),
        nn.GroupNorm(2, width),
        nn.ReLU(),
        nn.Conv1d(width, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(2 * width, CLASSES),
    )


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    student = network(size)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.005)
    named, name = waves(24)
    log: dict[str, list[float]] = {"loss": [], "consistency": []}
    for step in range(STEPS):
        unnamed, _ = waves(24)
        with torch.no_grad():
            belief = teacher(blurred(unnamed)).softmax(1)
        supervised = F.cross_entropy(student(blurred(named)), name)
        consistency = (student(blurred(unnamed)).softmax(1) - belief).square().sum(1).mean()
        trust = math.exp(-5 * (1 - min(1.0, 2 * step / STEPS)) ** 2)
        loss = supervised + trust * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay = min(0.97, (1 + step) / (10 + step))
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.mul_(decay).add_(fast, alpha=1 - decay)
        log["loss"].append(supervised.item())
        log["consistency"].append(consistency.item())
    return log
