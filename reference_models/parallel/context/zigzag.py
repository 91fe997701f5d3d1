"""The zig-zag order of causal context parallelism.

A late token attends to more tokens than an early one.  So the sequence is split into 2n chunks, and
rank r of n holds chunks r and 2n-1-r: an early and a late one, so that all ranks have equal work.
With n = 2, rank 0 holds chunks 0 and 3, and rank 1 holds chunks 1 and 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_trainsafe.reference_models.parallel.axes import Axis


def take_part(whole: Tensor, cp: Axis, dim: int = 1) -> Tensor:
    """This rank's two chunks of a whole sequence along `dim`."""
    if cp.size == 1:
        return whole
    chunks = whole.chunk(2 * cp.size, dim)
    return torch.cat([chunks[cp.rank], chunks[-1 - cp.rank]], dim)


def put_in_order(parts: Tensor, cp: Axis, dim: int = 1) -> Tensor:
    """The whole sequence along `dim`; `parts` has the parts of all ranks, joined in rank order."""
    if cp.size == 1:
        return parts
    chunks = parts.chunk(2 * cp.size, dim)
    # The chunks in `parts` are 0, 2n-1, 1, 2n-2, ..., so the early ones are at even places.
    return torch.cat([*chunks[0::2], *reversed(chunks[1::2])], dim)
