"""Pictures to classify: shapes of four kinds, drawn anywhere and half buried in noise.

Drawn when they are asked for, the same for the same number and seed.  `cnn.train` calls `batch`.
"""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("disk", "square", "cross", "ring")

#: Brightness comes in so many levels, which every floating-point dtype can hold.
LEVELS = 128


def batch(index: int, batch_size: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pictures [batch_size, 1, size, size], float32 in 0 to 1, and their kinds, int64, of
    micro-batch number `index`.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
    kinds = torch.randint(len(KINDS), (batch_size,), generator=generator)
    pictures = [_draw(int(kind), size, generator) for kind in kinds]
    return torch.stack(pictures)[:, None], kinds


def _draw(kind: int, size: int, generator: torch.Generator) -> Tensor:
    # In one dtype whatever the default: another draws other numbers.
    drawn = torch.rand(3, generator=generator, dtype=torch.float32)
    radius = size / 6 + float(drawn[0]) * size / 12
    middle = radius + drawn[1:] * (size - 1 - 2 * radius)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    down, across = (rows - middle[0]).abs(), (columns - middle[1]).abs()
    distance = (down.square() + across.square()).sqrt()
    inside = {
        "disk": distance <= radius,
        "square": torch.maximum(down, across) <= radius,
        "cross": (torch.minimum(down, across) <= 1) & (torch.maximum(down, across) <= radius),
        "ring": (distance <= radius) & (distance >= radius / 2),
    }[KINDS[kind]]
    noise = torch.rand(size, size, generator=generator, dtype=torch.float32)
    return ((inside.to(noise.dtype) + noise) * (LEVELS / 2)).round() / LEVELS
