"""Gradients that are written into `.grad`: of `autograd.grad`, of Reptile, and of an evolution.

None of them calls `backward`, and so nothing has to be cleared.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def task(gen: torch.Generator, n: int = 32) -> tuple[Tensor, Tensor]:
    """Return points and the values of a sine at them."""
    x = 4 * torch.rand(n, 1, generator=gen) - 2
    return x, torch.sin(2 * x) + 0.05 * torch.randn(n, 1, generator=gen)


def by_autograd(model: nn.Module, x: Tensor, y: Tensor) -> float:
    loss = F.mse_loss(model(x), y)
    params = list(model.parameters())
    grads = torch.autograd.grad(loss, params)
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    return loss.item()


def by_reptile(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The move of a copy that has learned for some steps."""
    fast = copy.deepcopy(model)
    losses = []
    for _ in range(3):
        loss = F.mse_loss(fast(x), y)
        grads = torch.autograd.grad(loss, list(fast.parameters()))
        with torch.no_grad():
            for p, g in zip(fast.parameters(), grads, strict=True):
                p.sub_(g, alpha=0.1)
        losses.append(loss.item())
    for slow, quick in zip(model.parameters(), fast.parameters(), strict=True):
        slow.grad = slow.detach() - quick.detach()
    return losses[0]


@torch.no_grad()
def by_evolution(model: nn.Module, x: Tensor, y: Tensor, gen: torch.Generator) -> float:
    """Differences of losses at pairs of weights on both sides, without any graph."""
    params = list(model.parameters())
    total = [torch.zeros_like(p) for p in params]
    for _ in range(6):
        noise = [torch.randn(p.shape, generator=gen) for p in params]
        values = []
        for sign in (0.05, -0.1):
            for p, e in zip(params, noise, strict=True):
                p.add_(e, alpha=sign)
            values.append(F.mse_loss(model(x), y).item())
        for p, e, t in zip(params, noise, total, strict=True):
            p.add_(e, alpha=0.05)
            t.add_(e, alpha=(values[0] - values[1]) / 0.1 / 6)
    for p, t in zip(params, total, strict=True):
        p.grad = t
    return F.mse_loss(model(x), y).item()


def train(
    *,
    seed: int = 0,
    steps: int = 14,
    hidden: int = 16,
    lr: float = 2e-2,
    how: Literal["autograd", "reptile", "evolution"] = "autograd",
) -> list[float]:
    """Fit a sine with Adam, whose gradients are computed as `how` says."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed + 1)
    model = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        x, y = task(gen)
        if how == "autograd":
            losses.append(by_autograd(model, x, y))
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        elif how == "reptile":
            losses.append(by_reptile(model, x, y))
        else:
            losses.append(by_evolution(model, x, y, gen))
        optimizer.step()
    return losses
