"""Pictures to classify: shapes of four kinds at random places, with noise added.

The pictures depend only on the number of the micro-batch and the seed.  `cnn.train` calls `batch`.
"""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("disk", "square", "cross", "ring")

#: Brightness is a multiple of 1 / LEVELS, which every floating-point dtype can represent.
LEVELS = 128


def batch(index: int, batch_size: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the pictures of micro-batch number `index`, and their kinds.

    The pictures are float32 in 0 to 1, of shape [batch_size, 1, size, size], and the kinds int64,
    of shape [batch_size].
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
    kinds = torch.randint(len(KINDS), (batch_size,), generator=generator)
    pictures = [_draw(int(kind), size, generator) for kind in kinds]
    return torch.stack(pictures)[:, None], kinds


def _draw(kind: int, size: int, generator: torch.Generator) -> Tensor:
    # Always draw in float32: torch draws other numbers in another dtype.
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
