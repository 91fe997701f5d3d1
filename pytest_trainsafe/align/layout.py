"""Layouts: how a rank's local tensor maps into the logical tensor.

A Layout is a tuple of placements, outermost split first.  Each placement names the mesh axis
it acts over; an axis that no placement names holds replicas.  Because every placement splits
one dimension, the whole map is one index array per dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec


class Shard(msgspec.Struct, frozen=True, tag="shard", omit_defaults=True):
    """Dimension `dim` is cut over `axis` in contiguous chunks, in rank order.

    `blocks` holds the sizes of consecutive blocks that are each cut on their own, as fused
    QKV or gated projections are (Megatron's `partition_stride`); empty means one block.
    An uneven dimension is cut as `torch.chunk` cuts it, as DTensor does.
    """

    dim: int
    axis: str
    blocks: tuple[int, ...] = ()


class ZigZag(msgspec.Struct, frozen=True, tag="zigzag"):
    """Dimension `dim` is cut in 2n chunks; rank r of n holds chunks r and 2n-1-r.

    The load-balanced order of causal context parallelism (Megatron-LM, torch, ring attention).
    """

    dim: int
    axis: str


class Partial(msgspec.Struct, frozen=True, tag="partial", omit_defaults=True):
    """Each rank along `axis` holds one term; their sum (or mean) is the logical tensor."""

    axis: str
    op: Literal["sum", "avg"] = "sum"


class Slices(msgspec.Struct, frozen=True, tag="slices"):
    """An explicit rectangle: `offsets[d] .. offsets[d] + lengths[d]` of a tensor of `shape`.

    For layouts that only the framework can compute (a mesh that is not the Point's, uneven
    nested shards).  It comes first in its Layout, and each rank has its own rectangle; equal
    rectangles are replicas.  `axes` names the mesh axes it depends on.
    """

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]


Placement = Shard | ZigZag | Partial | Slices
Layout = tuple[Placement, ...]

#: Every rank holds the whole tensor.
REPLICATED: Layout = ()

Sizes = Mapping[str, int]
Coordinates = Mapping[str, int]
