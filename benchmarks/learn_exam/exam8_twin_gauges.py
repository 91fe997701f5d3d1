"""Two gauges of a river read one encoder in half precision; each net has its own optimizer.

Follows https://github.com/huggingface/accelerate/issues/439.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StepsInHalf:
    """The steps of several optimizers that share one scale of the loss."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], at_the_end: bool) -> None:
        self.optimizers, self.at_the_end = optimizers, at_the_end
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9, growth_interval=5)

    def backward(self, loss: Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.scaler.scale(loss).backward()

    def step(self) -> float:
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
            if not self.at_the_end:
                self.scaler.update()
        if self.at_the_end:
            self.scaler.update()
        return self.scaler.get_scale()


def river(source: torch.Generator, law: Tensor) -> tuple[Tensor, Tensor]:
    weather = torch.randn(24, 8, generator=source)
    levels = (weather @ law).tanh() + 0.1 * weather[:, :2]
    return weather, levels


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(8, 2 * size), nn.Tanh(), nn.Linear(2 * size, size))
    gauges = nn.ModuleList(
        nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 1)) for _ in range(2)
    )
    steps = StepsInHalf(
        [
            torch.optim.SGD(encoder.parameters(), lr=0.08, momentum=0.9),
            torch.optim.SGD(gauges.parameters(), lr=0.04, momentum=0.9),
        ],
        at_the_end=healthy,
    )
    law = torch.randn(8, 2) / 2
    source = torch.Generator().manual_seed(seed)
    log: dict[str, list[float]] = {"loss": [], "scale": []}
    for _ in range(48):
        weather, levels = river(source, law)
        with torch.autocast("cpu", dtype=torch.float16):
            x = encoder(weather)
            read = torch.cat([gauge(x) for gauge in gauges], dim=1)
        loss = nn.functional.mse_loss(read.float(), levels)
        steps.backward(loss)
        log["scale"].append(steps.step())
        log["loss"].append(loss.item())
    return log
