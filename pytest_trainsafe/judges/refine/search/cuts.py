"""The ways to cut a sequential tensor into equal pieces, as the ranks of an axis may hold it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pytest_trainsafe.judges.refine.relations.pieces import (
    equal_pieces,
    fused_lengths,
    fused_pieces,
    zigzag_pieces,
)
from pytest_trainsafe.judges.refine.relations.relation import Part, Step

#: The largest number of blocks of a dimension, each of which is cut over the ranks.
_BLOCKS = 64
#: Numbers of micro-batches that are tried.
_MICROBATCHES = (2, 3, 4, 8)


def cuts(
    x: torch.Tensor, axis: str, size: int, fused: Sequence[tuple[Part, ...]] = ()
) -> Iterator[tuple[Step, list[torch.Tensor]]]:
    """Each way to cut `x` over the ranks of an axis, and the pieces.

    `fused` has the parts of tensors that the user declared to be fused of several, as the weights
    of queries, keys and values are.
    """
    for dim, whole in enumerate(x.shape):
        for parts in fused:
            lengths = fused_lengths(parts, size)
            if lengths is not None and sum(lengths) == whole:
                yield Step("concat", axis, dim, parts=parts), fused_pieces(x, dim, size, parts)
        if whole % size:
            continue
        share = whole // size
        for by in (number for number in range(1, min(share, _BLOCKS) + 1) if share % number == 0):
            yield Step("concat", axis, dim, by), equal_pieces(x, dim, by, size)
        if share % 2 == 0:
            yield Step("concat", axis, dim, 2, zigzag=True), zigzag_pieces(x, dim, size)


def microbatches(x: torch.Tensor) -> Iterator[tuple[Step, list[torch.Tensor]]]:
    """Each way to cut `x` into micro-batches, which a rank holds in tensors of their own."""
    for dim, whole in enumerate(x.shape):
        for count in _MICROBATCHES:
            if whole % count == 0 and whole >= count:
                yield Step("concat", dim=dim), list(x.chunk(count, dim))
