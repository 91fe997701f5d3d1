"""A denoiser of frost patterns, validated with the average of its weights after each epoch.

Follows https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

DECAY = 0.9


class WeightAverage:
    """A moving average of parameters, which can take their place for a while."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.average = [each.detach().clone() for each in parameters]
        self.stored: list[Tensor] = []

    @torch.no_grad()
    def step(self, parameters: Iterable[nn.Parameter]) -> None:
        for average, parameter in zip(self.average, parameters, strict=True):
            average.lerp_(parameter, 1 - DECAY)

    def store(self, parameters: Iterable[nn.Parameter]) -> None:
        self.stored = [each.detach().clone() for each in parameters]

    @torch.no_grad()
    def copy_to(self, parameters: Iterable[nn.Parameter]) -> None:
        for average, parameter in zip(self.average, parameters, strict=True):
            parameter.copy_(average)

    @torch.no_grad()
    def restore(self, parameters: Iterable[nn.Parameter]) -> None:
        for stored, parameter in zip(self.stored, parameters, strict=True):
            parameter.copy_(stored)
        self.stored = []


def frost(n: int) -> Tensor:
    grid = torch.linspace(0, 6.28, 10)
    a, b, c = (torch.rand(n, 1, 1) * 2 for _ in range(3))
    return (a * grid[None, :, None] + b * grid[None, None, :] + c).sin()[:, None]


def noisy_loss(net: nn.Module, clean: Tensor) -> Tensor:
    noise = 0.7 * torch.randn_like(clean)
    return (net(clean + noise) - noise).square().mean()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, size, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(size, size, 3, padding=1, groups=4),
        nn.SiLU(),
        nn.Conv2d(size, 1, 3, padding=1),
    )
    ema = WeightAverage(net.parameters())
    adam = torch.optim.Adam(net.parameters(), lr=0.008)
    validation = frost(24)
    losses, scores = [], []
    for _epoch in range(5):
        for _ in range(8):
            loss = noisy_loss(net, frost(12))
            adam.zero_grad()
            loss.backward()
            adam.step()
            ema.step(net.parameters())
            losses.append(loss.item())
        ema.store(net.parameters())
        ema.copy_to(net.parameters())
        with torch.no_grad():
            scores.append(noisy_loss(net, validation).item())
        if healthy:
            ema.restore(net.parameters())
    return {"loss": losses, "validation": scores}
