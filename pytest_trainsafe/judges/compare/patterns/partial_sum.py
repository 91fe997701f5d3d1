"""Recognises ranks that hold partial sums instead of the sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.layout import Owned, Partial, Slices, axes_of
from pytest_trainsafe.core.mesh import elsewhere, mesh_of
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

#: The largest number of ranks that are listed.
MAX_RANKS = 8

#: The gradients of parameters, which collectives outside of the model reduce.
_REDUCED = frozenset({"param_grad", "unclipped_grad", "main_grad"})

_NOUNS = {"activation": "activation", "loss": "loss", "grad_norm": "gradient norm"}


def partial_sum(wrong: WrongTensor) -> Pattern | None:
    """Matches if the sum (or mean) of the ranks' values along some axes is the reference.

    Tries every set of axes that the layout does not name, the smallest set first.  For each, it
    tries the sum itself, and the sum divided by the sizes of some of the axes.
    Then tries the sum over those ranks of an axis that hold the same slices, and over the ranks
    that own the same tensor, as the replicas of an expert.
    """
    sets = list(_sets(wrong))
    first = _summed(wrong, ()) if sets else None
    for axes in sets:
        total = _summed(wrong, axes)
        if total is None or total.shape != wrong.reference.shape:
            continue
        if first is None or wrong.explains(wrong.numbers.divide(total, _size(wrong, axes)), first):
            continue  # the values are replicas, whose sum proves nothing
        for count in range(len(axes) + 1):
            for divided in itertools.combinations(axes, count):
                value = wrong.numbers.divide(total, _size(wrong, divided))
                if wrong.explains(value):
                    return _pattern(wrong, axes, divided, value)
        if wrong.kind == "activation" and _explained_but_for_a_bias(wrong, total):
            return _with_bias(wrong, axes)
    of_slices = next(filter(None, (_of_slices(wrong, axis) for axis in wrong.sizes)), None)
    return of_slices or _of_owners(wrong)


def _of_slices(wrong: WrongTensor, axis: str) -> Pattern | None:
    """The pattern of terms that ranks hold who share slices, as those of a head of keys."""
    held: dict[object, list[int]] = {}
    for part in wrong.parts:
        slices = [p for p in part.layout if axis in axes_of(p)]
        if len(slices) != 1 or not isinstance(slices[0], Slices):
            return None
        held.setdefault(slices[0].ranges, []).append(part.rank)
    shared = [name_ranks(ranks) for ranks in held.values() if len(ranks) > 1]
    if not shared or len(held) == 1:
        return None
    total = _summed(wrong, (axis,))
    if total is None or total.shape != wrong.reference.shape or not wrong.explains(total):
        return None
    listed = " and ".join(shared[:2]) + (" and others" if shared[2:] else "")
    text = f"the ranks of {axis} that hold the same slices ({listed}) hold partial sums of them"
    cause = f"an all-reduce over the ranks of {axis} that hold the same slices is missing"
    short = f"partial sums over ranks of {axis} with the same slices"
    return Pattern("partial sum", text, axis, cause, short=short)


def _of_owners(wrong: WrongTensor) -> Pattern | None:
    """The pattern of terms that the owners of a tensor hold, of which other ranks hold nothing."""
    counted = {
        axis for p in wrong.parts for o in p.layout if isinstance(o, Owned) for axis in o.axes
    }
    axes = tuple(
        axis
        for axis in wrong.sizes
        if axis in counted
        and len({part.coordinates[axis] for part in wrong.parts}) > 1
        and not any(names_axis(part, axis) for part in wrong.parts)
    )
    total, first = (_summed(wrong, axes), _summed(wrong, ())) if axes else (None, None)
    if total is None or first is None or total.shape != wrong.reference.shape:
        return None
    owners = len({tuple(part.coordinates[axis] for axis in axes) for part in wrong.parts})
    if wrong.explains(wrong.numbers.divide(total, owners), first) or not wrong.explains(total):
        return None
    along = " and ".join(axes)
    ranks = name_ranks(sorted(part.rank for part in wrong.parts))
    text = (
        f"the ranks of {along} that own this ({ranks}) hold partial sums: "
        f"{_terms(wrong.parts, axes)} equals the reference"
    )
    noun = _NOUNS.get(wrong.kind, "gradient" if "grad" in wrong.kind else "value")
    cause = f"an all-reduce over those ranks of {along} is missing for this {noun}"
    short = f"partial sums over ranks of {along} that own this"
    return Pattern("partial sum", text, axes[0] if len(axes) == 1 else along, cause, short=short)


def _explained_but_for_a_bias(wrong: WrongTensor, total: torch.Tensor) -> bool:
    """Whether a sum equals the reference plus one row that is added everywhere.

    If ranks add a bias to their terms before the reduction, the sum contains the bias too often.
    """
    leading = tuple(range(total.ndim - 1))
    if math.prod(total.shape[:-1]) < 2:
        return False
    excess = wrong.common(wrong.minus(total, wrong.reference), leading)
    return wrong.explains(wrong.minus(total, excess))


def _with_bias(wrong: WrongTensor, axes: tuple[str, ...]) -> Pattern:
    along = " and ".join(axes)
    text = (
        f"the ranks of {along} hold partial sums: {_terms(wrong.parts, axes)} equals the reference "
        "plus the same row everywhere, such as a bias that every rank adds"
    )
    cause = f"an all-reduce over {along} is missing for this activation, before its bias is added"
    short = f"partial sums over {along}, all-reduce missing"
    return Pattern("partial sum", text, axes[0] if len(axes) == 1 else along, cause, short=short)


def _sets(wrong: WrongTensor) -> Iterator[tuple[str, ...]]:
    free = [
        axis
        for axis, size in wrong.sizes.items()
        if size > 1
        and not any(names_axis(part, axis) for part in wrong.parts)
        and len({part.coordinates[axis] for part in wrong.parts}) == size
    ]
    for count in range(1, len(free) + 1):
        yield from itertools.combinations(free, count)


def names_axis(part: Part, axis: str) -> bool:
    """Whether a part's layout names `axis`; if not, the ranks along it hold replicas."""
    mesh = mesh_of(part.coordinates)
    return any(axis in mesh.expand(axes_of(placement)) for placement in part.layout)


def _summed(wrong: WrongTensor, axes: Sequence[str]) -> torch.Tensor | None:
    """The logical tensor, assuming that the ranks of `axes` hold partial sums."""
    partial = tuple(Partial(axis) for axis in axes)
    parts = [
        Part(p.rank, p.coordinates, p.tensor, p.layout + partial, p.layout_source)
        for p in wrong.parts
    ]
    shape = tuple(wrong.reference.shape)
    found = merge(parts, wrong.sizes, shape=shape, numbers=wrong.numbers).whole
    return found.to(wrong.reference.dtype) if found is not None else None


def _size(wrong: WrongTensor, axes: Sequence[str]) -> int:
    return math.prod(wrong.sizes[axis] for axis in axes)


def _pattern(
    wrong: WrongTensor, axes: tuple[str, ...], divided: tuple[str, ...], value: torch.Tensor
) -> Pattern:
    along = " and ".join(axes)
    terms = _terms(wrong.parts, axes)
    close = "(exactly)"
    if not wrong.numbers.exact:
        left = wrong.norm(wrong.minus(value, wrong.reference))
        if left:
            close = f"(to {left / (wrong.norm(wrong.reference) or 1.0):.1e})"
    noun = _NOUNS.get(wrong.kind, "gradient" if "grad" in wrong.kind else "value")
    instead = _instead(wrong, axes) if divided == axes and wrong.kind in _REDUCED else ()
    if divided == axes:
        text = (
            f"the mean over the ranks of {along} ({terms}, divided by their number) equals the "
            "reference"
        )
        cause = f"an average over {along} is missing for this {noun}"
    elif divided:
        text = f"the ranks of {along} hold partial sums: {terms}, divided by the size of "
        text += f"{' and '.join(divided)}, equals the reference"
        cause = f"an all-reduce over {along} is missing for this {noun}"
    else:
        text = f"the ranks of {along} hold partial sums: {terms} equals the reference"
        cause = f"an all-reduce over {along} is missing for this {noun}"
    axis = axes[0] if len(axes) == 1 else along
    missing = "average" if divided == axes else "all-reduce"
    short = f"partial sums over {along}, {missing} missing"
    other = " and ".join(instead)
    if instead and {*instead} <= wrong.summed and not wrong.summed & {*axes}:
        cause = f"it is summed over the replicas of {other} instead of over {along}"
        short = f"summed over {other} instead of {along}"
    elif instead:
        cause += (
            f", or it is summed over the replicas of {other} instead of over {along}: both have "
            f"{_size(wrong, axes)} ranks"
        )
    return Pattern("partial sum", f"{text} {close}", axis, cause, short=short)


def _instead(wrong: WrongTensor, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Other axes of the size of `axes` whose ranks hold replicas; () if there are none.

    Ranks that sum their terms over these other axes hold the mean over `axes` times this size: the
    values do not tell a sum over the wrong axes from an average that is missing.
    """
    size = _size(wrong, axes)
    others = [
        axis
        for axis, count in wrong.sizes.items()
        if count > 1 and axis not in axes and _replicas(wrong, axis)
    ]
    sets = (c for n in range(1, len(others) + 1) for c in itertools.combinations(others, n))
    return next((found for found in sets if _size(wrong, found) == size), ())


def _replicas(wrong: WrongTensor, axis: str) -> bool:
    """Whether all ranks that differ only along `axis` hold the same values, bit for bit."""
    first: dict[tuple[tuple[str, int], ...], torch.Tensor] = {}
    for part in wrong.parts:
        held = first.setdefault(elsewhere(part.coordinates, (axis,)), part.tensor)
        if not torch.equal(held, part.tensor):
            return False
    return len(first) < len(wrong.parts)


def _terms(parts: list[Part], axes: Sequence[str]) -> str:
    """The sum in words, `rank0 + rank1`: the first rank and those that differ only along `axes`."""

    def elsewhere(part: Part) -> dict[str, int]:
        """The coordinates of the part's rank, except those along the `axes` of `_terms`."""
        return {axis: at for axis, at in part.coordinates.items() if axis not in axes}

    names = [f"rank{p.rank}" for p in parts if elsewhere(p) == elsewhere(parts[0])]
    if len(names) > MAX_RANKS:
        names = [*names[:2], "…", names[-1]]
    return " + ".join(names)
