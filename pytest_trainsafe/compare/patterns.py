"""What a wrong value is, in relation to the right one.

Each pattern is a function of a Wrong tensor that returns a Pattern or None.  A pattern must
explain the error: with it undone, what is left of the error is rounding, or a hundredth.
Called for the tensors that lead a report.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from pytest_trainsafe.align.indices import LayoutError, extract
from pytest_trainsafe.align.layout import Partial, Shard, ZigZag
from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.compare.errors import norm as array_norm
from pytest_trainsafe.finding import Pattern

#: An explanation may leave this share of the error unexplained.
LEFT_OVER = 0.01


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong logical tensor with everything a pattern may look at.

    `value` and `reference` are wide and of one shape.  `parts` are the ranks' own, `sizes` the
    mesh axes' sizes, `factors` other numbers a value may be scaled by ("microbatches").
    `allowed` is the absolute norm that rounding explains.  `earlier` is the reference's value
    of the step before, where there is one.  `dtype` is the recorded dtype.
    """

    value: torch.Tensor
    reference: torch.Tensor
    parts: list[Part]
    sizes: Mapping[str, int]
    factors: Mapping[str, int]
    allowed: float
    kind: str
    dtype: str
    earlier: torch.Tensor | None = None

    @property
    def error(self) -> float:
        return norm(self.value - self.reference)

    def explains(self, value: torch.Tensor, target: torch.Tensor | None = None) -> bool:
        """Whether `value` is the reference (or `target`), up to rounding or a hundredth."""
        expected = self.reference if target is None else target
        left = norm(value - expected)
        return left <= max(min(3 * self.allowed, self.error / 4), LEFT_OVER * self.error)


def explain(wrong: Wrong) -> Pattern | None:
    """The first pattern that explains a wrong tensor, the most specific first."""
    for pattern in PATTERNS:
        found = pattern(wrong)
        if found is not None:
            return found
    return None


def zero(wrong: Wrong) -> Pattern | None:
    """Every value is zero."""
    if norm(wrong.value) > 0 or norm(wrong.reference) == 0:
        return None
    return Pattern(
        "zero",
        "every value is zero",
        cause="nothing reaches this tensor: it is cut off, masked, or cleared before it is used",
    )


def partial_sum(wrong: Wrong) -> Pattern | None:
    """Ranks along an axis hold terms whose sum (or mean) is the reference."""
    for axis, size in wrong.sizes.items():
        if size == 1 or any(_names(part, axis) for part in wrong.parts):
            continue
        total = _merged_over(wrong, axis)
        if total is None or total.shape != wrong.reference.shape:
            continue
        ranks = " + ".join(f"rank{r}" for r in _line(wrong.parts, axis))
        what = "gradient" if "grad" in wrong.kind else "value"
        if wrong.explains(total):
            text = f"the ranks of {axis} hold partial sums: {ranks} equals the reference"
            cause = f"an all-reduce over {axis} is missing for this {what}"
        elif wrong.explains(total / size):
            text = f"the mean over the ranks of {axis} ({ranks}, divided) equals the reference"
            cause = f"an average over {axis} is missing for this {what}"
        else:
            continue
        left = norm((total if "sums" in text else total / size) - wrong.reference)
        text += f" (to {left / (norm(wrong.reference) or 1):.1e})"
        return Pattern("partial sum", text, axis, cause)
    return None


def scaled(wrong: Wrong) -> Pattern | None:
    """The value is a multiple of the reference."""
    power = float(wrong.reference.abs().square().sum())
    if power == 0 or wrong.value.numel() == 0:
        return None
    factor = float((wrong.value * wrong.reference.conj()).real.sum()) / power
    if factor == 0 or not wrong.explains(wrong.value / factor):
        return None
    if factor < 0:
        text = f"the value is {factor:.6g} times the reference"
        return Pattern("scaled", text, cause="the sign is wrong")
    named = _factor_names(factor, {**wrong.sizes, **wrong.factors})
    if not named:
        text = f"the value is {factor:.6g} times the reference"
        return Pattern("scaled", text, cause="a factor is wrong, missing, or applied twice")
    text = f"the value is {factor:.6g} times the reference, which is {' or '.join(named)}"
    axis = named[0].removeprefix("1/")
    over = factor > 1
    cause = (
        f"a division by {axis} is missing, or a sum over {axis} counts replicas"
        if over
        else f"it is divided by {axis} once too often, or a sum over {axis} is missing"
    )
    return Pattern("scaled", text, axis if axis in wrong.sizes else "", cause)


def other_shard(wrong: Wrong) -> Pattern | None:
    """Ranks along an axis hold each other's parts of the reference."""
    for axis, size in wrong.sizes.items():
        if size == 1 or not all(_splits(part, axis) for part in wrong.parts):
            continue
        holds: dict[int, int] = {}
        for part in wrong.parts:
            mine = part.tensor.to(wrong.reference.dtype)
            for other in range(size):
                where = {**part.coordinates, axis: other}
                try:
                    theirs = extract(wrong.reference, part.layout, where, wrong.sizes)
                except LayoutError:
                    return None
                if theirs.shape == mine.shape and norm(mine - theirs) <= max(
                    3 * wrong.allowed, LEFT_OVER * norm(theirs)
                ):
                    holds[part.rank] = other
                    break
        if len(holds) < len(wrong.parts):
            continue
        moved = [p for p in wrong.parts if holds[p.rank] != p.coordinates[axis]]
        if moved:
            first = moved[0]
            text = (
                f"rank {first.rank} holds the part of {axis} rank {holds[first.rank]} instead of "
                f"{axis} rank {first.coordinates[axis]}"
            )
            cause = f"the order or the offset of the parts along {axis} is wrong"
            return Pattern("another shard", text, axis, cause)
    return None


def permuted(wrong: Wrong) -> Pattern | None:
    """The rows along one dimension are those of the reference in another order."""
    for dim, length in enumerate(wrong.reference.shape):
        if length < 2 or wrong.reference.numel() == length:
            continue
        order = _matching(wrong.value, wrong.reference, dim)
        if order is None or not wrong.explains(
            wrong.value, wrong.reference.index_select(dim, order)
        ):
            continue
        moved = (order != torch.arange(length)).nonzero().flatten()
        if len(moved) == 0:
            continue
        first = int(moved[0])
        text = (
            f"{len(moved)} of {length} rows of dimension {dim} are in another order: row {first} "
            f"holds what belongs to row {int(order[first])}"
        )
        cause = f"parts are gathered or reordered wrongly along dimension {dim}"
        return Pattern("permuted rows", text, cause=cause)
    return None


def stale(wrong: Wrong) -> Pattern | None:
    """The value is the reference's of the step before."""
    if wrong.earlier is None or wrong.earlier.shape != wrong.value.shape:
        return None
    if not wrong.explains(wrong.value, wrong.earlier):
        return None
    return Pattern(
        "stale",
        "the value is the reference's of the step before",
        cause="a buffer or a copy is not refreshed in this step",
    )


def narrower(wrong: Wrong) -> Pattern | None:
    """Every value is exactly representable in a narrower dtype, unlike the reference's."""
    order = ["bfloat16", "float16", "float32"]
    wide = {"float64": order, "float32": order[:2]}.get(wrong.dtype, [])
    for name in wide:
        dtype = getattr(torch, name)
        rounded = wrong.reference.to(dtype).to(wrong.reference.dtype)
        if bool((rounded == wrong.reference).all()):
            continue  # the reference fits too, so this says nothing
        fits = wrong.value.to(dtype).to(wrong.value.dtype)
        epsilon = torch.finfo(dtype).eps
        if bool((fits == wrong.value).all()) and wrong.error <= epsilon * norm(wrong.reference):
            return Pattern(
                "narrower dtype",
                f"every value fits {name} exactly, and the error is that of rounding to it",
                cause=f"the value passes through {name} on its way",
            )
    return None


PATTERNS: tuple[Callable[[Wrong], Pattern | None], ...] = (
    zero,
    partial_sum,
    scaled,
    other_shard,
    stale,
    permuted,
    narrower,
)


def norm(tensor: torch.Tensor) -> float:
    """Frobenius norm."""
    return array_norm(tensor.numpy())


def _names(part: Part, axis: str) -> bool:
    return any(getattr(p, "axis", None) == axis for p in part.layout)


def _splits(part: Part, axis: str) -> bool:
    return any(isinstance(p, Shard | ZigZag) and p.axis == axis for p in part.layout)


def _line(parts: list[Part], axis: str) -> list[int]:
    """The ranks that differ from the first only in their place along `axis`."""
    first = {k: v for k, v in parts[0].coordinates.items() if k != axis}
    return [p.rank for p in parts if {k: v for k, v in p.coordinates.items() if k != axis} == first]


def _merged_over(wrong: Wrong, axis: str) -> torch.Tensor | None:
    """The logical tensor if the ranks of `axis` held terms of a sum."""
    coordinates = {part.coordinates[axis] for part in wrong.parts}
    if len(coordinates) < wrong.sizes[axis]:
        return None
    parts = [
        Part(p.rank, p.coordinates, p.tensor, (*p.layout, Partial(axis)), p.layout_source)
        for p in wrong.parts
    ]
    return merge(parts, wrong.sizes).tensor


def _factor_names(factor: float, sizes: Mapping[str, int]) -> list[str]:
    """Which axis sizes, or products of two, a factor or its inverse is."""
    large = {name: size for name, size in sizes.items() if size > 1}
    singles = [name for name, size in large.items() if _close(factor, size)]
    inverse = [f"1/{name}" for name, size in large.items() if _close(factor, 1 / size)]
    if singles or inverse:
        return singles + inverse
    products = []
    for (a, x), (b, y) in itertools.combinations_with_replacement(large.items(), 2):
        if _close(factor, x * y):
            products.append(f"{a}*{b}")
        if _close(factor, 1 / (x * y)):
            products.append(f"1/({a}*{b})")
    return products


def _close(left: float, right: float) -> bool:
    return abs(left - right) <= 0.02 * right


def _matching(value: torch.Tensor, reference: torch.Tensor, dim: int) -> torch.Tensor | None:
    """For each row of `value` the row of `reference` it is nearest to; None unless one to one."""
    length = reference.shape[dim]
    rows = reference.movedim(dim, 0).reshape(length, -1)
    others = value.movedim(dim, 0).reshape(length, -1)
    if not rows.is_floating_point() or length > 4096:
        return None
    nearest = torch.cdist(others, rows).argmin(1)
    if len(nearest.unique()) < length:
        return None
    return nearest
