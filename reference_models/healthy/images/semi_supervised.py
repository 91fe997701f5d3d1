"""Few labelled and many unlabelled pictures: two loaders, two losses, warm-up and a cosine."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def train(
    *, seed: int = 0, steps: int = 6, width: int = 16, weight: float = 0.1, warm_up: int = 2
) -> list[float]:
    """Classify pictures by the brightness of their upper half, in two epochs of `steps` / 2 steps.

    The loss is the cross entropy of the labelled pictures, plus `weight` times the entropy of the
    predictions for the unlabelled ones.  The gradients of the head and of the other layers are
    clipped separately.  `warm_up` is the number of warm-up steps.
    """
    torch.manual_seed(seed)
    half = steps // 2
    pictures = torch.randn(24 * half, 1, 6, 6)
    pictures[::2, :, :3] += 1.0
    kinds = torch.arange(24 * half) % 2
    labelled = DataLoader(
        TensorDataset(pictures[: 8 * half], kinds[: 8 * half]), batch_size=8, drop_last=True
    )
    others = DataLoader(TensorDataset(pictures[8 * half :]), batch_size=16, shuffle=True)
    body = nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.ELU())
    head = nn.Linear(width, 2)
    model = nn.Sequential(body, head)
    groups: list[dict[str, Any]] = [
        {"params": body.parameters()},
        {"params": head.parameters(), "lr": 0.2},
    ]
    optimizer = torch.optim.SGD(
        groups,
        lr=0.1,
        momentum=0.9,
        nesterov=True,
    )
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.3, total_iters=warm_up),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        ],
        milestones=[warm_up],
    )
    losses = []
    for _ in range(2):
        for (x, y), (more,) in zip(labelled, others, strict=True):
            model.zero_grad()
            optimizer.zero_grad()
            supervised = F.cross_entropy(model(x), y)
            guess = model(more).softmax(dim=1)
            entropy = -weight * (guess * guess.clamp_min(1e-6).log()).sum(dim=1).mean()
            torch.autograd.backward([supervised, entropy])
            nn.utils.clip_grad_norm_(body.parameters(), 2.0)
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(float(supervised.detach()))
    return losses
