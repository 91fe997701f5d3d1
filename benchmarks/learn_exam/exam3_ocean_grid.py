"""Emulates the next state of an ocean grid; its blocks are computed anew in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class ConvBlock(nn.Module):
    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(entering, leaving, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm2d(leaving)

    def forward(self, grid: Tensor) -> Tensor:
        return nn.functional.gelu(self.norm(self.conv(grid)))


@contextmanager
def statistics_kept(block: nn.Module) -> Iterator[None]:
    known = [
        (norm, norm.momentum, norm.num_batches_tracked, norm.num_batches_tracked.clone())
        for norm in block.modules()
        if isinstance(norm, nn.BatchNorm2d) and norm.num_batches_tracked is not None
    ]
    for norm, *_ in known:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum, counted, batches in known:
            norm.momentum = momentum
            counted.copy_(batches)


class Emulator(nn.Module):
    def __init__(self, channels: int, norms_aware: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [ConvBlock(2, channels), ConvBlock(channels, channels), ConvBlock(channels, channels)]
        )
        self.out = nn.Conv2d(channels, 2, 1)
        self.norms_aware = norms_aware

    def forward(self, grid: Tensor) -> Tensor:
        x = grid
        for block in self.blocks:
            if self.training:
                x = checkpoint(
                    block, x, use_reentrant=False, context_fn=partial(self._contexts, block)
                )
            else:
                x = block(x)
        changed: Tensor = grid + self.out(x)
        return changed

    def _contexts(
        self, block: nn.Module
    ) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        again = statistics_kept(block) if self.norms_aware else nullcontext()
        return nullcontext(), again


def states(count: int) -> tuple[Tensor, Tensor]:
    now = torch.randn(count, 2, 6, 6) + 0.5
    drift = now.roll(1, dims=3) - now
    mixing = now.flip(1) - now.mean((2, 3), keepdim=True)
    return now, now + 0.6 * drift + 0.3 * mixing


def validate(model: Emulator, now: Tensor, then: Tensor) -> float:
    model.eval()
    with torch.inference_mode():
        error = nn.functional.mse_loss(model(now), then).item()
    model.train()
    return error


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Emulator(size, norms_aware=healthy)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    held_out = states(16)
    losses, validation = [], []
    for _ in range(4):
        for _ in range(6):
            now, then = states(8)
            loss = nn.functional.mse_loss(model(now), then)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        validation.append(validate(model, *held_out))
    return {"loss": losses, "validation": validation}
