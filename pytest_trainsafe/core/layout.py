"""Layouts: how a rank's local tensor maps into the logical tensor.

A Layout is a tuple of placements, outermost split first.  Each placement names the mesh axis
it acts over; along an axis that no placement names, ranks hold replicas.  Every placement splits
one dimension, so the whole map is one index array per dimension.  The exception is a Flat, which
comes last and takes a range across dimensions (`align/flat.py` undoes it first).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    import torch

#: A number of elements, rows or ranks; reading a trace rejects any other value.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class Shard(msgspec.Struct, frozen=True, tag="shard", omit_defaults=True):
    """Dimension `dim` is split over `axis` into contiguous chunks, in rank order.

    `blocks` holds the sizes of consecutive blocks that are split independently, as in fused
    QKV or gated projections (Megatron's `partition_stride`); empty means one block.
    An uneven dimension is split as `torch.chunk` and DTensor split it.
    """

    dim: int
    axis: str
    blocks: tuple[Count, ...] = ()


class ZigZag(msgspec.Struct, frozen=True, tag="zigzag"):
    """Dimension `dim` is split into 2n chunks; rank r of n holds chunks r and 2n-1-r.

    The load-balanced order of causal context parallelism (Megatron-LM, torch, ring attention).
    """

    dim: int
    axis: str


class Striped(msgspec.Struct, frozen=True, tag="striped"):
    """Dimension `dim` is dealt out in turn: rank r of n holds the elements r, r + n, r + 2n...

    The order of striped attention (Brandon et al., 2023).
    """

    dim: int
    axis: str


class Partial(msgspec.Struct, frozen=True, tag="partial", omit_defaults=True):
    """Each rank along `axis` holds one term; their sum (or mean) is the logical tensor."""

    axis: str
    op: Literal["sum", "avg"] = "sum"


#: The indices `range(start, stop, step)`, as (start, stop, step).
Range = tuple[Count, Count, Annotated[int, msgspec.Meta(ge=1, le=2**48)]]


class Slices(msgspec.Struct, frozen=True, tag="slices", omit_defaults=True):
    """Explicit indices of a tensor of `shape`: in dimension d, those of `ranges[d]`, in order.

    For layouts that only the framework or the user's code can compute (a mesh that differs from
    the Point's, uneven nested shards, an order of its own).  It comes first in its Layout.  The
    ranges of a dimension increase and do not overlap.  Each rank has its own ranges; equal ones
    are replicas, or terms of a sum over an axis that a Partial names too.  `axes` names the mesh
    axes that the ranges depend on.  `first` says, for such sums, whether the rank is the first
    along `axes` with these ranges: a tensor that is made for the ranks has its values there, and
    zeros on the others.
    """

    ranges: tuple[tuple[Range, ...], ...]
    shape: tuple[Count, ...]
    axes: tuple[str, ...]
    first: bool = True

    @classmethod
    def rectangle(
        cls,
        offsets: tuple[int, ...],
        lengths: tuple[int, ...],
        shape: tuple[int, ...],
        axes: tuple[str, ...],
    ) -> Slices:
        """The rectangle `offsets[d] .. offsets[d] + lengths[d]`."""
        pairs = zip(offsets, lengths, strict=True)
        return cls(tuple(((start, start + length, 1),) for start, length in pairs), shape, axes)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of indices in each dimension."""
        return tuple(sum(len(range(*each)) for each in ranges) for ranges in self.ranges)


class Flat(msgspec.Struct, frozen=True, tag="flat"):
    """A range of a flattened tensor: elements `offset .. offset + length`, in row-major order.

    The flattened tensor is this rank's part after the preceding placements and has shape `shape`;
    the local tensor is a vector of `length` elements.  For optimizers that split a flat buffer of
    many parameters (Megatron-LM's distributed optimizer, DeepSpeed's ZeRO, FSDP's flat parameters).
    It must be the last placement that splits.  Each rank has its own range; equal ranges are
    replicas, and a rank with an empty range may hold no tensor at all.  `axes` names the mesh axes
    along which the ranges of the ranks together make up the tensor.
    """

    offset: Count
    length: Count
    shape: tuple[Count, ...]
    axes: tuple[str, ...]


class Scaled(msgspec.Struct, frozen=True, tag="scaled"):
    """The rank's values are those of the logical tensor, multiplied by the size of `axis`.

    This holds for gradients of a loss that each rank averages over its own samples, until the
    reduction over `axis` divides by the number of ranks.  It does not say how ranks along `axis`
    split the tensor.
    """

    axis: str


class Owned(msgspec.Struct, frozen=True, tag="owned", omit_defaults=True):
    """Only some ranks hold the tensor: the owners of an expert.

    Ranks are numbered by their coordinates along `axes`, the first of which varies fastest.  The
    owner index of a rank is `number // stride % parts`; ranks with the same owner index own the
    same tensors.  This describes Megatron-LM's expert parallelism: `ep` consecutive ranks along cp
    and dp divide the experts among them.  If experts have a tensor-parallel size of their own, tp
    is among the axes and that size is the stride.
    """

    axes: tuple[str, ...]
    parts: Annotated[int, msgspec.Meta(ge=1, le=2**48)]
    stride: Annotated[int, msgspec.Meta(ge=1, le=2**48)] = 1

    def owner(self, coordinates: Coordinates, sizes: Sizes) -> int:
        """A number that tells which ranks hold the same tensors: those with equal numbers.

        `coordinates` are those of a rank.
        """
        number, stride = 0, 1
        for axis in self.axes:
            number += coordinates[axis] * stride
            stride *= sizes[axis]
        return number // self.stride % self.parts


#: The placements that split one dimension over one axis.
Split = Shard | ZigZag | Striped
Placement = Split | Partial | Slices | Flat | Scaled | Owned
Layout = tuple[Placement, ...]


def axes_of(placement: Placement) -> tuple[str, ...]:
    """The mesh axes whose coordinates determine which part a rank holds."""
    match placement:
        case Slices() | Flat():
            return placement.axes
        case Scaled() | Owned():
            return ()
        case _:
            return (placement.axis,)


def common_form(layout: Layout) -> tuple[object, ...]:
    """The properties of a layout that must be equal on all ranks that hold the tensor."""

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
    """One rank's part of a logical tensor.  Made from traces; `align/merge.py` joins parts."""

    rank: int
    coordinates: Coordinates
    tensor: torch.Tensor
    layout: Layout = ()
    layout_source: str = "default"
