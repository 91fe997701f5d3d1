"""What the ranks of an axis hold: the pieces of a dimension, and the sum of terms."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from pytest_trainsafe.arithmetic import Numbers
from pytest_trainsafe.judges.refine.relations.relation import Part


def total(terms: Sequence[torch.Tensor], numbers: Numbers) -> torch.Tensor:
    """The sum of tensors of one shape; of masks, what all of them hold."""
    if terms[0].dtype is torch.bool:
        return functools.reduce(torch.logical_and, terms)
    return numbers.linear(lambda *each: functools.reduce(torch.add, each), *terms)


def sections(x: torch.Tensor, lengths: Sequence[int], dim: int) -> list[torch.Tensor]:
    """Consecutive parts of these lengths along `dim`."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return [x.narrow(dim, start, length) for start, length in zip(starts, lengths, strict=True)]


def blocks(x: torch.Tensor, dim: int, sizes: Sequence[int]) -> torch.Tensor:
    """`x` with the dimension `dim` as several, of these sizes."""
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def equal_pieces(x: torch.Tensor, dim: int, by: int, size: int) -> list[torch.Tensor]:
    """The piece of each of `size` ranks, where `dim` is `by` blocks that are cut alike."""
    share = x.shape[dim] // (by * size)
    parted = blocks(x, dim, (by, size, share))
    shape = (*x.shape[:dim], by * share, *x.shape[dim + 1 :])
    return [each.reshape(shape) for each in parted.unbind(dim + 1)]


def zigzag_pieces(x: torch.Tensor, dim: int, size: int) -> list[torch.Tensor]:
    """The piece of each of `size` ranks: a part of `dim`, and the part that is as far from the end.

    So the ranks have equal shares of causal attention.
    """
    parts = x.chunk(2 * size, dim)
    return [torch.cat((parts[rank], parts[-1 - rank]), dim) for rank in range(size)]


def fused_lengths(parts: Sequence[Part], size: int) -> list[int] | None:
    """The length of each part over all ranks; None if copies do not divide the ranks."""
    if any(size % copies for _, copies in parts):
        return None
    return [part * size // copies for part, copies in parts]


def fused_pieces(x: torch.Tensor, dim: int, size: int, parts: Sequence[Part]) -> list[torch.Tensor]:
    """The piece of each rank, where it consists of parts, of which some ranks hold copies."""
    lengths = fused_lengths(parts, size)
    assert lengths is not None
    assert sum(lengths) == x.shape[dim]
    whole = sections(x, lengths, dim)
    return [
        torch.cat(
            [
                section.narrow(dim, rank // copies * part, part)
                for section, (part, copies) in zip(whole, parts, strict=True)
            ],
            dim,
        )
        for rank in range(size)
    ]
