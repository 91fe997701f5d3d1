"""The valid Points of a program over some axes, and moves between them.

The strategy of fuzz tests draws values and, where they are invalid, moves to a valid Point.  The
search for the smallest failing Point uses the space too.  Rules are functions of whole Points, so
only whole Points are known to be valid or invalid.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import TypeVar

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.core.rungs.table import rung_choices
from pytest_trainsafe.core.usage import excerpt
from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.sweep.marker import Declaration
from pytest_trainsafe.sweep.product import AxisValues, Cell, cell_of, is_reference, with_marker
from pytest_trainsafe.sweep.validity import Rule

#: How many random values of the other axes are tried to find a valid Point with given mesh axes.
TRIES = 200
#: The most combinations of mesh axes in a space, and the most reasons that an error lists.
MAX_MESHES, MAX_REASONS = 10_000, 8
#: The most Points to which the rules are applied to learn whether they allow some values together.
MAX_ASKED = 10_000

#: Why a Point that all rules allow is not in a space.
IS_REFERENCE = "the candidate is the reference itself here"

Values = dict[str, AxisValue]
T = TypeVar("T")


def no_rule(point: Point, arguments: Mapping[str, object]) -> str | None:
    """The rule of a project that declares none: every Point is valid."""
    return None


@dataclass(eq=False)
class Space:
    """The Points of a declaration's axes that are valid under `settings` and the project's `rule`.

    `axes` has the values of each axis, the cheapest first: it is the order in which examples are
    shrunk.  Points at which the candidate is the reference itself are in the space only if `alone`
    is set, for tests of metamorphic relations, which are judged at these Points too.

    The mesh axes are those whose sizes multiply into the number of ranks.  A key of `bases` is a
    tuple with one size for each mesh axis, for which a valid Point was found.
    """

    declaration: Declaration
    settings: Settings
    rule: Rule = no_rule
    alone: bool = False
    axes: AxisValues = field(init=False)
    _cells: dict[Point, Cell] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        mesh = self.declaration.program.traits.mesh
        order = sorted(self.declaration.axes, key=lambda each: each[0].name not in mesh.axes)
        self.axes = tuple((axis, cheapest_first(axis.name, values)) for axis, values in order)
        self.settings = with_marker(self.settings, self.declaration)

    @cached_property
    def values(self) -> Mapping[str, tuple[AxisValue, ...]]:
        """The values of each axis, the cheapest first; mesh axes before all others."""
        return {axis.name: values for axis, values in self.axes}

    @cached_property
    def mesh_axes(self) -> tuple[str, ...]:
        """The names of the axes whose sizes multiply into the world size."""
        mesh = self.declaration.program.traits.mesh
        return tuple(name for name in self.values if name in mesh.axes)

    @cached_property
    def other_axes(self) -> tuple[str, ...]:
        """The names of the axes that are not mesh axes."""
        return tuple(name for name in self.values if name not in self.mesh_axes)

    def point(self, values: Mapping[str, AxisValue]) -> Point:
        """The Point with these values, one for each axis, in the declared order of axes."""
        names = (axis.name for axis, _ in self.declaration.axes)
        mesh = self.declaration.program.traits.mesh
        return Point(tuple((name, values[name]) for name in names), mesh)

    def cell(self, point: Point) -> Cell:
        """The Cell of a Point: the Case that a test runs at the Point, and whether it is valid.

        The Cell's field `invalid` says why the Point is not in the space, or is None if it is.
        """
        cell = self._cells.get(point)
        if cell is None:
            rules = (*self.declaration.program.rules, self.rule)
            cell = cell_of(self.declaration, point, self.settings, rules)
            if (
                cell.invalid is None
                and not self.alone
                and is_reference(self.declaration, cell.case)
            ):
                cell = replace(cell, invalid=IS_REFERENCE)
            self._cells[point] = cell
        return cell

    def is_valid(self, point: Point) -> bool:
        """Whether a Point is in the space."""
        return self.cell(point).invalid is None

    def is_reference(self, point: Point) -> bool:
        """Whether a Point is left out only because the candidate is the reference itself there."""
        return self.cell(point).invalid == IS_REFERENCE

    def allows(self, values: Mapping[str, Sequence[AxisValue]]) -> bool | None:
        """Whether the rules allow some Point whose axes have some of these values.

        The axes that `values` does not name may have any value.  A Point at which the candidate is
        the reference is allowed.  None if no such Point was found among the first MAX_ASKED, and
        there are more.
        """
        choices = [values.get(name, every) for name, every in self.values.items()]
        for row in itertools.islice(itertools.product(*choices), MAX_ASKED):
            point = self.point(dict(zip(self.values, row, strict=True)))
            if self.is_valid(point) or self.is_reference(point):
                return True
        return None if math.prod(map(len, choices)) > MAX_ASKED else False

    @cached_property
    def bases(self) -> dict[tuple[AxisValue, ...], Point]:
        """Maps sizes of the mesh axes, one for each axis, to a valid Point that has these sizes.

        Sizes for which no valid Point was found are left out.  Sizes with the fewest ranks come
        first.  Raises SweepError with the reasons if no valid Point was found at all.
        """
        reasons: Counter[str] = Counter()
        found = {}
        for sizes in self._meshes():
            base = self._base(dict(zip(self.mesh_axes, sizes, strict=True)), reasons)
            if base is not None:
                found[sizes] = base
        if not found:
            raise SweepError(self._contradiction(reasons))
        return found

    @cached_property
    def by_parallel_axes(self) -> dict[tuple[bool, ...], list[tuple[AxisValue, ...]]]:
        """Groups the keys of `bases` by which of the mesh axes have several ranks.

        Groups and keys are in the order of `bases`: fewest ranks first.
        """
        groups: dict[tuple[bool, ...], list[tuple[AxisValue, ...]]] = {}
        for sizes in self.bases:
            groups.setdefault(tuple(size != 1 for size in sizes), []).append(sizes)
        return groups

    def meshes(self, parallel: Sequence[bool]) -> list[tuple[AxisValue, ...]]:
        """The keys of `bases` in which the given mesh axes, and no others, have several ranks.

        `parallel` has a bool for each mesh axis: True for several ranks, False for size 1.  If no
        key fits, the last True becomes False, then also the True before it, until some keys fit.
        If no key fits even when all are False, the result is the first key of `bases`, which has
        the fewest ranks, with all keys that have several ranks along the same axes.
        """
        wanted = list(parallel)
        for place in reversed(range(len(wanted))):
            found = self.by_parallel_axes.get(tuple(wanted))
            if found is not None:
                return found
            wanted[place] = False
        groups = self.by_parallel_axes
        return groups.get(tuple(wanted)) or next(iter(groups.values()))

    def _meshes(self) -> list[tuple[AxisValue, ...]]:
        """The combinations of sizes of the mesh axes, fewest ranks first.

        Combinations with more ranks than `settings.max_world_size` are left out.
        """
        most = self.settings.max_world_size
        sizes: list[tuple[AxisValue, ...]] = [()]
        for name in self.mesh_axes:
            sizes = [
                (*each, value)
                for each in sizes
                for value in self.values[name]
                if math.prod(map(int, (*each, value))) <= most
            ]
            if len(sizes) > MAX_MESHES:
                raise SweepError(
                    f"the mesh axes have more than {MAX_MESHES} combinations within "
                    f"{most} ranks; give fewer values"
                )
        if not sizes:
            words = " ".join(f"{n}={','.join(map(str, self.values[n]))}" for n in self.mesh_axes)
            raise SweepError(
                f"every combination of {excerpt(words)} has more than {most} ranks; give smaller "
                "sizes, or a larger max_world_size"
            )
        return sorted(sizes, key=lambda each: math.prod(map(int, each)))

    def _base(self, mesh: Values, reasons: Counter[str]) -> Point | None:
        cheapest = {**mesh, **{name: self.values[name][0] for name in self.other_axes}}
        for point in self._completions(mesh, cheapest):
            reason = self.cell(point).invalid
            if reason is None:
                return point
            reasons[reason] += 1
        return None

    def _completions(self, mesh: Values, cheapest: Values) -> Iterator[Point]:
        """Yields Points to try that have the sizes in `mesh`.

        These are all such Points if there are at most TRIES.  If there are more, Points that differ
        from `cheapest` in at most one axis come first, and then TRIES random Points.
        """
        names = self.other_axes
        if math.prod(len(self.values[name]) for name in names) <= TRIES:
            rows: list[Values] = [dict(mesh)]
            for name in names:
                rows = [{**row, name: value} for row in rows for value in self.values[name]]
            yield from map(self.point, rows)
            return
        yield self.point(cheapest)
        for name in names:
            for value in self.values[name][1:]:
                yield self.point({**cheapest, name: value})
        random = Random(0)
        for _ in range(TRIES):
            drawn = {name: _pick(self.values[name], random) for name in names}
            yield self.point({**mesh, **drawn})

    def _contradiction(self, reasons: Counter[str]) -> str:
        total = math.prod(len(values) for _, values in self.axes)
        tried = len(self._cells)
        what = f"none of the {tried} points of these axes is valid"
        if tried < total:
            what = f"no valid point was found among {tried} of {total}"
        shown = [f"  {text} ({count})" for text, count in reasons.most_common(MAX_REASONS)]
        more = len(reasons) - len(shown)
        rest = [f"  and {more} more reasons"] if more > 0 else []
        head = f"{self.declaration.program.name}: {what}; give the axes other values. Reasons"
        return "\n".join([f"{head}:", *shown, *rest])

    def repaired(self, drawn: Mapping[str, AxisValue]) -> Point:
        """The Point of the drawn values if it is valid, else a valid Point with few axes changed.

        `drawn` has a value for every axis.  The values of the mesh axes are not changed; together
        they must be a key of `bases`, so that a valid Point with these sizes is known.
        """
        near = self._near(drawn)
        if near is not None:
            return near
        values = dict(drawn)
        base = self.bases[tuple(drawn[name] for name in self.mesh_axes)]
        for name in reversed(self.other_axes):
            values[name] = dict(base)[name]
            if self.is_valid(point := self.point(values)):
                return point
        return base

    def _near(self, values: Mapping[str, AxisValue]) -> Point | None:
        """The Point of these values, or a valid Point that differs from it in one non-mesh axis.

        None if there is no such Point.
        """
        point = self.point(values)
        if self.is_valid(point):
            return point
        for name in reversed(self.other_axes):
            for value in self.values[name]:
                if self.is_valid(point := self.point({**values, name: value})):
                    return point
        return None

    def moved(
        self, point: Point, axis: str, value: AxisValue, kept: Collection[str] = ()
    ) -> Point | None:
        """`point` with another value of an axis, and with one more axis changed if rules need that.

        The axes in `kept` are not changed.  None if no such Point is valid.
        """
        values = {**dict(point), axis: value}
        if self.is_valid(moved := self.point(values)):
            return moved
        for name in reversed([n for n in self.values if n != axis and n not in kept]):
            for other in self.values[name]:
                if self.is_valid(moved := self.point({**values, name: other})):
                    return moved
        return None

    def drawn_at_random(self, count: int) -> Iterator[Values]:
        """Yields `count` combinations of values, drawn at random with a fixed seed.

        Each combination has one value for every axis.  The values of the mesh axes are a key of
        `bases`, so a valid Point with these sizes is known.  The values of the other axes may make
        the combination invalid; `repaired` changes them until the Point is valid.
        """
        random = Random(0)
        bases = list(self.bases)
        for _ in range(count):
            mesh = dict(zip(self.mesh_axes, _pick(bases, random), strict=True))
            others = {name: _pick(self.values[name], random) for name in self.other_axes}
            yield {**mesh, **others}

    def is_near(self, values: Mapping[str, AxisValue]) -> bool:
        """Whether these values are a valid Point, or become one if one non-mesh axis changes."""
        return self._near(values) is not None


def cheapest_first(axis: str, values: Sequence[AxisValue]) -> tuple[AxisValue, ...]:
    """Values of an axis, the cheapest first: small numbers, False, dtypes with few rungs.

    Rungs that wings and projects add come after the dtypes.

    Words are kept in the order in which the test gives them.
    """
    if axis == "dtype":
        return tuple(sorted(values, key=lambda value: rung_choices().index(str(value))))
    if all(isinstance(value, (int, float)) for value in values):
        return tuple(sorted(values, key=float))
    return tuple(values)


def _pick(values: Sequence[T], random: Random) -> T:
    return values[int(random.random() * len(values))]
