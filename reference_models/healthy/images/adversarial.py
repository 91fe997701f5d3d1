"""Adversarial training with the fast gradient sign method, on original and perturbed pictures."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def attacked(
    model: nn.Module, picture: torch.Tensor, kind: torch.Tensor, far: float
) -> torch.Tensor:
    """Return the pictures plus `far` times the sign of the loss's gradient in each pixel.

    `kind` has the correct classes.  The model's parameters get no gradients here.
    """
    model.requires_grad_(False)
    moved = picture.clone().requires_grad_(True)
    F.cross_entropy(model(moved), kind).backward()  # type: ignore[no-untyped-call]
    model.requires_grad_(True)
    assert moved.grad is not None
    return (moved + far * moved.grad.sign()).detach()


def train(
    *, seed: int = 0, steps: int = 8, width: int = 8, far: float = 0.05, lr: float = 0.1
) -> list[float]:
    """Learn to classify pictures by the place of a bright row.

    Each batch is used as it is, and perturbed by `far` with `attacked`.  The learning rate rises
    from zero.  Gradients are cleared at the start and the end of a step.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(9 * width, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / 3))
    losses = []
    for _ in range(steps):
        kind = torch.arange(12) % 3
        picture = 0.3 * torch.randn(12, 1, 6, 6)
        for number, each in enumerate(kind.tolist()):
            picture[number, 0, 2 * each] += 1.0
        optimizer.zero_grad()
        hard = attacked(model, picture, kind, far)
        loss = F.cross_entropy(model(picture), kind) + F.cross_entropy(model(hard), kind)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        warm_up.step()
        losses.append(float(loss.detach()))
    return losses
