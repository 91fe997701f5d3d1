"""Chooses the Points of a test for `--trainsafe-cover`, and counts them for the header.

Called by `sweep.product`, which makes the Cells, and by `sweep.collect` for the header.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.core.axes import Axis
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.sweep.covering.design import Part, Row, design, tuples_of

#: The option, and what tuples of so many values are called.
OPTION = "--trainsafe-cover"
_TUPLES = {2: "pairs", 3: "triples"}
#: The most tuples without a test that the header names.
MAX_NAMED = 8

#: Of what use a Point is to a covering design.  "idle": it is valid, but the candidate is the same
#: Run as the reference, so a test cannot fail there.
Use = Literal["valid", "idle", "invalid"]

AxisValues = tuple[tuple[Axis, tuple[AxisValue, ...]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """The counts of one test's covering design; all its Cells share one instance.

    The design keeps `kept` of `points` Points.  `points` counts the valid Points of the sweep if
    `valid` is true, and otherwise all Points, because the sweep is too large to check each one.
    The kept Points cover `tuples` valid tuples of `strength` axis values each.  `undecided` counts
    other tuples: no valid Point was found that contains such a tuple, but not all Points that
    contain it were tried.  `idle` counts the tuples that only Points contain at which the candidate
    is the reference, and `idle_words` names some of them; they are unknown, and count as 0, if the
    sweep is too large.
    """

    strength: int
    kept: int
    points: int
    valid: bool
    tuples: int
    undecided: int
    idle: int = 0
    idle_words: tuple[str, ...] = ()


def choose_points(
    axes: AxisValues, mesh: Mesh, strength: int, use: Callable[[Point], Use]
) -> tuple[list[Point], Cover] | None:
    """The Points of a covering design, in the order of the whole sweep, and its counts.

    `use` says of what use a Point is; only "valid" ones are chosen.
    None if fewer than `strength` axes have several values, or if no valid Point was found.  The
    test then keeps its whole sweep.
    """
    if sum(len(values) > 1 for _, values in axes) < strength:
        return None

    def point(row: Row) -> Point:
        named = ((axis.name, values[n]) for (axis, values), n in zip(axes, row, strict=True))
        return Point(tuple(named), mesh)

    levels = [len(values) for _, values in axes]
    uses = functools.cache(lambda row: use(point(row)))
    made = design(levels, strength, lambda row: bool(uses(row) == "valid"))
    if not made.rows:
        return None
    idle: dict[Part, None] = {}
    if made.valid is not None:
        known = set(tuples_of(made.rows, len(levels), strength))
        rows = (row for row in itertools.product(*map(range, levels)) if uses(row) == "idle")
        idle = {part: None for part in tuples_of(rows, len(levels), strength) if part not in known}
    total = math.prod(levels) if made.valid is None else made.valid
    cover = Cover(
        strength,
        len(made.rows),
        total,
        made.valid is not None,
        made.covered,
        made.undecided,
        len(idle),
        tuple(_words(axes, part) for part in [*idle][:MAX_NAMED]),
    )
    return [point(row) for row in made.rows], cover


def _words(axes: AxisValues, part: Part) -> str:
    """A tuple of axis values as text: `vpp=1 recompute=full`."""
    named = ((axes[axis], number) for axis, number in zip(*part, strict=True))
    return " ".join(f"{axis.name}={values[number]}" for (axis, values), number in named)


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
    if undecided:
        text = (
            f"{text.replace('all ', '', 1)}; for {undecided} other {what} no valid point was "
            "found, and not all points were tried"
        )
    idle = sum(each.idle for each in every)
    if not idle:
        return text
    words = [word for each in every for word in each.idle_words][:MAX_NAMED]
    more = f" and {idle - len(words)} more" if idle > len(words) else ""
    noun, those = (what, "they are") if idle != 1 else (what.removesuffix("s"), "it is")
    return (
        f"{text.replace('cover all', 'cover', 1)}; no point tests {idle} other {noun}, because the "
        f"candidate is the reference wherever {those} valid: {', '.join(words)}{more}"
    )
