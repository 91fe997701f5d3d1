"""Recognises ranks that hold other ranks' shards."""

from __future__ import annotations

import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.indices import LayoutError, extract
from pytest_trainsafe.core.layout import Partial, Split
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import FEW, LEFT_OVER, WrongTensor


def other_shard(wrong: WrongTensor) -> Pattern | None:
    """Matches if all ranks hold shards of the reference, but some hold another rank's shard.

    Tries each axis along which the layout shards the tensor.
    """
    for axis, size in wrong.sizes.items():
        if size == 1 or not wrong.parts or not all(_splits(part, axis) for part in wrong.parts):
            continue
        holds = {part.rank: _whose(part, axis, wrong) for part in wrong.parts}
        moved = [p for p in wrong.parts if holds[p.rank] != p.coordinates[axis]]
        if moved and all(held is not None for held in holds.values()):
            return _pattern(axis, moved, holds, wrong.parts)
    return None


def _pattern(
    axis: str, moved: list[Part], holds: dict[int, int | None], parts: list[Part]
) -> Pattern:
    first = moved[0]
    text = (
        f"rank {first.rank} holds the part of {axis} rank {holds[first.rank]} instead of "
        f"{axis} rank {first.coordinates[axis]}"
    )
    if len(moved) > 1:
        text += f", and {len(moved) - 1} more ranks hold another rank's part"
    repeated = _repeated(first, axis, parts)
    if repeated is not None:
        text = f"ranks {repeated.rank} and {first.rank} of {axis} hold the same values: {text}"
        cause = (
            f"ranks of {axis} take the same part, by an offset that does not depend on the rank, "
            "or they drew the same random numbers for different parts"
        )
        short = f"ranks of {axis} hold the same part"
        return Pattern("another shard", text, axis, cause, short=short)
    cause = f"the order or the offset of the parts along {axis} is wrong"
    short = f"ranks hold each other's parts along {axis}"
    return Pattern("another shard", text, axis, cause, short=short)


def _repeated(first: Part, axis: str, parts: list[Part]) -> Part | None:
    """The part of another rank that differs from that of `first` only along `axis`, and equals it.

    None if there is none.
    """
    others = {**first.coordinates, axis: 0}
    for part in parts:
        beside = part is not first and {**part.coordinates, axis: 0} == others
        if beside and torch.equal(part.tensor, first.tensor):
            return part
    return None


def _splits(part: Part, axis: str) -> bool:
    split = any(isinstance(p, Split) and p.axis == axis for p in part.layout)
    return split and not any(isinstance(p, Partial) for p in part.layout)


def _whose(part: Part, axis: str, wrong: WrongTensor) -> int | None:
    """The coordinate along `axis` whose shard of the reference equals a rank's part, or None."""
    mine = part.tensor.to(wrong.reference.dtype)
    own = part.coordinates[axis]
    others = [other for other in range(wrong.sizes[axis]) if other != own]
    expected = _part(wrong, part, axis, own)
    if expected is None or expected.shape != mine.shape:
        return None
    error = wrong.norm(wrong.minus(mine, expected))
    if wrong.within(error, max(3 * wrong.allowed, LEFT_OVER * wrong.norm(expected))):
        return own
    for other in others:
        theirs = _part(wrong, part, axis, other)
        if theirs is None or theirs.shape != mine.shape or mine.numel() < FEW:
            continue
        left = wrong.norm(wrong.minus(mine, theirs))
        if wrong.within(left, max(min(3 * wrong.allowed, error / 4), LEFT_OVER * error)):
            return other
    return None


def _part(wrong: WrongTensor, part: Part, axis: str, other: int) -> torch.Tensor | None:
    where = {**part.coordinates, axis: other}
    try:
        return extract(wrong.reference, part.layout, where, wrong.sizes)
    except LayoutError:
        return None
