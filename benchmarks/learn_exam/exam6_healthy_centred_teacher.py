"""A student learns without labels from an average of itself, whose outputs are centred."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def cosine(start: float, end: float, steps: int) -> Callable[[int], float]:
    return lambda at: end + (start - end) * (1 + math.cos(math.pi * at / steps)) / 2


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 0.1 * torch.randn_like(x), x * (torch.rand_like(x) > 0.1)


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    steps, prototypes = 30, 8
    last = nn.utils.parametrizations.weight_norm(nn.Linear(size, prototypes, bias=False))
    last.parametrizations.weight.original0.requires_grad_(False)
    student = nn.Sequential(nn.Linear(10, size), nn.BatchNorm1d(size), nn.GELU(), last)
    teacher = copy.deepcopy(student).requires_grad_(False)
    centre = torch.zeros(prototypes)
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=1e-2)
    momentum, warmth = cosine(0.9, 1.0, steps), cosine(0.07, 0.04, steps)
    groups = 2 * torch.randn(6, 10)
    losses = []
    for step in range(steps):
        x = groups[torch.randint(6, (48,))] + 0.3 * torch.randn(48, 10)
        one, two = views(x)
        with torch.no_grad():
            seen = [teacher(one), teacher(two)]
            goals = [((s - centre) / warmth(step)).softmax(-1) for s in seen]
        crossed = zip(goals, (student(two), student(one)), strict=True)
        loss = sum(-(g * (s / 0.1).log_softmax(-1)).sum(-1).mean() / 2 for g, s in crossed)
        assert isinstance(loss, Tensor)
        optimizer.zero_grad()
        loss.backward()
        if step < 3:
            last.parametrizations.weight.original1.grad = None
        optimizer.step()
        with torch.no_grad():
            m = momentum(step)
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.mul_(m).add_(s, alpha=1 - m)
            centre = 0.9 * centre + 0.1 * torch.cat(seen).mean(0)
        losses.append(loss.item())
    return {"loss": losses}
