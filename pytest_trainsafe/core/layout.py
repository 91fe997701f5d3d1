"""Layouts: how a rank's local tensor maps into the logical tensor.

A Layout is a tuple of placements, outermost split first.  Each placement names the mesh axis
it acts over; an axis that no placement names holds replicas.  Because every placement splits
one dimension, the whole map is one index array per dimension; only a Flat, which comes last,
takes a run across them (`align/flat.py` undoes it first).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    import torch

#: A number of elements, rows or ranks; a trace that says another is refused when it is read.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class Shard(msgspec.Struct, frozen=True, tag="shard", omit_defaults=True):
    """Dimension `dim` is cut over `axis` in contiguous chunks, in rank order.

    `blocks` holds the sizes of consecutive blocks that are each cut on their own, as fused
    QKV or gated projections are (Megatron's `partition_stride`); empty means one block.
    An uneven dimension is cut as `torch.chunk` cuts it, as DTensor does.
    """

    dim: int
    axis: str
    blocks: tuple[Count, ...] = ()


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

    offsets: tuple[Count, ...]
    lengths: tuple[Count, ...]
    shape: tuple[Count, ...]
    axes: tuple[str, ...]


class Flat(msgspec.Struct, frozen=True, tag="flat"):
    """A run of a flattened tensor: elements `offset .. offset + length`, in row-major order.

    What is flattened is what the placements before it leave to this rank, a tensor of `shape`;
    the part is a vector of `length`.  For optimizers that cut a flat buffer of many parameters
    (Megatron-LM's distributed optimizer, DeepSpeed's ZeRO, FSDP's flat parameters).  It is the
    last placement that cuts, and each rank has its own run; equal runs are replicas, and a rank
    without elements need hold nothing.  `axes` names the mesh axes whose ranks' runs together
    make the tensor.
    """

    offset: Count
    length: Count
    shape: tuple[Count, ...]
    axes: tuple[str, ...]


class Scaled(msgspec.Struct, frozen=True, tag="scaled"):
    """Values are as many times the logical ones as `axis` has ranks.

    Gradients are, of a loss averaged over one rank's own share, until the reduction over `axis`
    divides by their number.  Says nothing of what ranks along `axis` hold.
    """

    axis: str


class Owned(msgspec.Struct, frozen=True, tag="owned", omit_defaults=True):
    """Only some ranks hold the tensor: the owners of an expert.

    Ranks are numbered over `axes`, the first varying fastest, and `stride` neighbours share a
    number; all whose numbers leave the same remainder when divided by `parts` own the same
    tensors, and no others do.  That is Megatron-LM's expert parallelism: `ep` neighbours along cp
    and dp share the experts out.  Where experts have a tensor-parallel size of their own, tp is
    among the axes and that size is the stride.
    """

    axes: tuple[str, ...]
    parts: Annotated[int, msgspec.Meta(ge=1, le=2**48)]
    stride: Annotated[int, msgspec.Meta(ge=1, le=2**48)] = 1

    def owner(self, coordinates: Coordinates, sizes: Sizes) -> int:
        """The remainder of the rank at these coordinates."""
        number, stride = 0, 1
        for axis in self.axes:
            number += coordinates[axis] * stride
            stride *= sizes[axis]
        return number // self.stride % self.parts


Placement = Shard | ZigZag | Partial | Slices | Flat | Scaled | Owned
Layout = tuple[Placement, ...]


def axes_of(placement: Placement) -> tuple[str, ...]:
    """The mesh axes on which a rank's coordinates say what it holds."""
    match placement:
        case Slices() | Flat():
            return placement.axes
        case Scaled() | Owned():
            return ()
        case _:
            return (placement.axis,)


def common_form(layout: Layout) -> tuple[object, ...]:
    """A layout without what may differ between ranks."""

    def form(placement: Placement) -> object:
        match placement:
            case Slices():
                return placement.shape, placement.axes
            case Flat():
                return "runs", placement.axes
        return placement

    return tuple(map(form, layout))


#: Every rank holds the whole tensor.
REPLICATED: Layout = ()

Sizes = Mapping[str, int]
Coordinates = Mapping[str, int]


class Part(msgspec.Struct, frozen=True):
    """What one rank holds of a logical tensor.  Made from traces, put together by merge."""

    rank: int
    coordinates: Coordinates
    tensor: torch.Tensor
    layout: Layout = ()
    layout_source: str = "default"
