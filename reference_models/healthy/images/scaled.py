"""A small CNN under float16 autocast with a gradient scaler: momentum, a schedule, an overflow."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def train(
    *, seed: int = 0, steps: int = 8, width: int = 8, lr: float = 0.05, growth: int = 3
) -> list[float]:
    """Classify pictures by the place of a bright band.

    The initial loss scale is so large that gradients overflow; the scaler skips these steps and
    reduces the scale.  `growth` is the scaler's growth interval.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * width, 3),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps + 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=growth)
    losses = []
    for _ in range(steps):
        kind = torch.randint(3, (18,))
        picture = 0.2 * torch.randn(18, 1, 8, 8)
        for number, each in enumerate(kind.tolist()):
            picture[number, 0, each : each + 3] += 1.0 + each
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(picture), kind)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            schedule.step()
        losses.append(float(loss.detach()))
    return losses
