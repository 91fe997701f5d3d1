"""Kinds of lichen on photos, by blocks whose activations are computed again in the backward pass.

Follows https://github.com/pytorch/pytorch/issues/96136.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

KINDS = 4

Context = AbstractContextManager[None]


class ConvBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels, momentum=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.conv(x)).relu()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Within it, the statistics of the norm stay as they are."""
        before, self.norm.momentum = self.norm.momentum, 0.0
        try:
            yield
        finally:
            self.norm.momentum = before


def while_computed_again(block: ConvBlock) -> Callable[[], tuple[Context, Context]]:
    return lambda: (contextlib.nullcontext(), block.resting())


class LichenNet(nn.Module):
    def __init__(self, channels: int, rest: bool) -> None:
        super().__init__()
        self.rest = rest
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(ConvBlock(channels) for _ in range(3))
        self.head = nn.Linear(channels, KINDS)

    def forward(self, photo: Tensor) -> Tensor:
        x = self.stem(photo)
        for block in self.blocks:
            assert isinstance(block, ConvBlock)
            if self.training:
                contexts = while_computed_again(block) if self.rest else noop_context_fn
                x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
            else:
                x = block(x)
        return self.head(x.mean((2, 3)))


class Trainer:
    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        self.colours = torch.rand(KINDS, 3, 1, 1) * 2
        self.logged: dict[str, list[float]] = {"loss": [], "validation": []}

    def photos(self, n: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(KINDS, (n,))
        return self.colours[kind] + torch.randn(n, 3, 8, 8), kind

    def loss(self, n: int) -> Tensor:
        photo, kind = self.photos(n)
        return nn.functional.cross_entropy(self.net(photo), kind)

    def epoch(self) -> None:
        self.net.train()
        for _ in range(8):
            self.optimizer.zero_grad()
            loss = self.loss(16)
            loss.backward()
            self.optimizer.step()
            self.logged["loss"].append(loss.item())
        self.net.eval()
        with torch.no_grad():
            self.logged["validation"].append(self.loss(32).item())


def train(healthy: bool = True, seed: int = 0, size: int = 12) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    trainer = Trainer(LichenNet(size, rest=healthy))
    for _ in range(4):
        trainer.epoch()
    return trainer.logged
