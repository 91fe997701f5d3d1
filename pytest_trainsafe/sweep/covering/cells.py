"""Chooses the Points of a test for `--trainsafe-cover`, and counts them for the header.

Called by `sweep.product`, which makes the Cells, and by `sweep.collect` for the header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_trainsafe.core.axes import Axis
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.sweep.covering.design import Row, design

#: The option, and what tuples of so many values are called.
OPTION = "--trainsafe-cover"
_TUPLES = {2: "pairs", 3: "triples"}

AxisValues = tuple[tuple[Axis, tuple[AxisValue, ...]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """The counts of one test's covering design; all its Cells share one instance.

    The design keeps `kept` of `points` Points.  `points` counts the valid Points of the sweep if
    `valid` is true, and otherwise all Points, because the sweep is too large to check each one.
    The kept Points cover `tuples` valid tuples of `strength` axis values each.  `undecided` counts
    other tuples: no valid Point was found that contains such a tuple, but not all Points that
    contain it were tried.
    """

    strength: int
    kept: int
    points: int
    valid: bool
    tuples: int
    undecided: int


def choose_points(
    axes: AxisValues, mesh: Mesh, strength: int, is_valid: Callable[[Point], bool]
) -> tuple[list[Point], Cover] | None:
    """The Points of a covering design, in the order of the whole sweep, and its counts.

    None if fewer than `strength` axes have several values, or if no valid Point was found.  The
    test then keeps its whole sweep.
    """
    if sum(len(values) > 1 for _, values in axes) < strength:
        return None

    def point(row: Row) -> Point:
        named = ((axis.name, values[n]) for (axis, values), n in zip(axes, row, strict=True))
        return Point(tuple(named), mesh)

    levels = [len(values) for _, values in axes]
    made = design(levels, strength, lambda row: is_valid(point(row)))
    if not made.rows:
        return None
    total = math.prod(levels) if made.valid is None else made.valid
    cover = Cover(
        strength, len(made.rows), total, made.valid is not None, made.covered, made.undecided
    )
    return [point(row) for row in made.rows], cover


def cover_text(covers: Iterable[Cover]) -> str:
    """`9 of 64 valid points cover all 120 valid pairs of axis values`, with sums over all tests.

    "" if no test has a covering design.
    """
    every = list(dict.fromkeys(covers))
    if not every:
        return ""
    what = _TUPLES.get(every[0].strength, f"tuples of {every[0].strength} values")
    kept, points = sum(each.kept for each in every), sum(each.points for each in every)
    tuples, undecided = sum(c.tuples for c in every), sum(c.undecided for c in every)
    valid = "valid " if all(each.valid for each in every) else ""
    text = f"{kept} of {points} {valid}points cover all {tuples} valid {what} of axis values"
    if not undecided:
        return text
    return (
        f"{text.replace('all ', '', 1)}; for {undecided} other {what} no valid point was found, "
        "and not all points were tried"
    )
