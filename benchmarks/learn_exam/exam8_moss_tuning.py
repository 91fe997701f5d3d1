"""Kinds of moss, from a network whose lower layers learn more slowly, beside a slow copy of it.

Follows https://github.com/huggingface/pytorch-image-models/issues/2691.
"""

from __future__ import annotations

import copy
import itertools
import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS, SIGNS, LAYERS = 6, 12, 3


class MossNet(nn.Module):
    """Layers and a head, and a copy of them whose scores the head should stay close to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [SIGNS] + [width] * LAYERS
        self.layers = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))
        self.head = nn.Linear(width, KINDS)
        self.calm = copy.deepcopy(self.layers).requires_grad_(False)

    @staticmethod
    def read(layers: nn.Module, x: Tensor) -> Tensor:
        for layer in layers.children():
            x = F.gelu(layer(x))
        return x

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.read(self.layers, x)), self.head(self.read(self.calm, x))

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.calm.parameters(), self.layers.parameters(), strict=True):
            slow.lerp_(fast, 0.1)


def depth(name: str) -> tuple[int, int]:
    """Where a parameter lies: lower layers before upper ones, then the rest by name."""
    found = re.match(r"layers\.(\d+)", name)
    if found:
        return 0, int(found[1])
    found = re.match(r"calm\.(\d+)", name)
    return (2, int(found[1])) if found else (1, 0)


def groups(net: nn.Module, lr: float, decay: float, learned: bool) -> list[dict[str, object]]:
    """A group for each layer, whose rate shrinks with the distance from the last layer."""
    named = [each for each in net.named_parameters() if each[1].requires_grad or not learned]
    depths = sorted({depth(name) for name, _ in named})
    rates = {at: lr * decay ** (len(depths) - 1 - place) for place, at in enumerate(depths)}
    found: dict[tuple[int, int], list[nn.Parameter]] = {}
    for name, parameter in named:
        if parameter.requires_grad:
            found.setdefault(depth(name), []).append(parameter)
    return [{"params": each, "lr": rates[at]} for at, each in found.items()]


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = MossNet(2 * size)
    optimizer = torch.optim.AdamW(groups(net, lr=0.01, decay=0.7, learned=healthy))
    law = torch.randn(SIGNS, KINDS)
    source = torch.Generator().manual_seed(seed)
    curve = []
    for _ in range(45):
        signs = torch.randn(32, SIGNS, generator=source)
        kind = (signs @ law).argmax(1)
        scores, calm = net(signs)
        apart = F.mse_loss(scores, calm)
        loss = F.cross_entropy(scores, kind) + 0.1 * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        net.follow()
        curve.append(loss.item())
    return {"loss": curve}
