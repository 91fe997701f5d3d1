"""Finds the smallest Point at which a test fails in the same way, and what each axis does to it.

First all axes outside the mesh take their cheapest values at once.  Then each axis in turn, mesh
axes first, takes a cheaper value, until no single axis can be made cheaper.  Finally each axis is
varied alone.  Every Point is run once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.sweep.search.interaction import AxisEffect, Interaction
from pytest_trainsafe.sweep.search.space import Space

#: How the test ends at a Point.  "fails": by the same failure as where the search started;
#: "differs": in any other way than this failure or a pass.  Another failure, an inconclusive
#: comparison and an error say nothing about the failure that is searched.
Result = Literal["fails", "passes", "differs"]
#: A result, and the Point at which the test ended so.
_Found = tuple[Result, Point]

#: The most Points that a search runs.
MAX_TRIED = 60


def minimise(space: Space, start: Point, run: Callable[[Point], Result]) -> Interaction:
    """Finds the smallest failing Point near `start`, and the effect of each axis there.

    The test must fail at `start`.
    """
    return _Search(space, start, run).interaction()


class _Search:
    """One search: the Points that have been run, and the smallest failing one so far."""

    def __init__(self, space: Space, start: Point, run: Callable[[Point], Result]) -> None:
        self.space = space
        self.smallest = start
        self.complete = True
        self._run = run
        self._known: dict[Point, Result] = {start: "fails"}

    def interaction(self) -> Interaction:
        self._without_others()
        while self._one_step():
            pass
        return Interaction(self.smallest, self._effects(), len(self._known), self.complete)

    def _result(self, point: Point) -> Result | None:
        """How the test ends at a Point; None if the search has reached its limit."""
        if point not in self._known:
            if len(self._known) >= MAX_TRIED:
                self.complete = False
                return None
            self._known[point] = self._run(point)
        return self._known[point]

    def _without_others(self) -> None:
        """Sets all axes outside the mesh to their cheapest values at once, if the test still fails.

        Most failures need few of these axes, so this saves many Points.
        """
        values = dict(self.smallest)
        values.update({name: self.space.values[name][0] for name in self.space.other_axes})
        point = self.space.point(values)
        if self.space.is_valid(point) and self._result(point) == "fails":
            self.smallest = point

    def _one_step(self) -> bool:
        """Tries cheaper values of each axis and keeps the first with which the test still fails.

        Returns whether there is one.
        """
        for axis, values in self.space.values.items():
            mine = dict(self.smallest)[axis]
            for value in values[: values.index(mine)]:
                point = self.space.moved(self.smallest, axis, value)
                if point is None or not self._is_smaller(point):
                    continue
                if self._result(point) == "fails":
                    self.smallest = point
                    return True
        return False

    def _is_smaller(self, point: Point) -> bool:
        """Whether a Point is cheaper: fewer ranks, then cheaper values of the axes in their order.

        A move may have to make a second axis more expensive.  Without this comparison the search
        could go back and forth.
        """
        return self._cost(point) < self._cost(self.smallest)

    def _cost(self, point: Point) -> tuple[int, ...]:
        own = dict(point)
        ranks = [values.index(own[axis]) for axis, values in self.space.values.items()]
        return (point.world_size, *ranks)

    def _effects(self) -> tuple[AxisEffect, ...]:
        several = [axis for axis, values in self.space.values.items() if len(values) > 1]
        effects = [self._effect(axis, every=False) for axis in several]
        # A range of values is claimed only for needed axes, and only if every value was tried.
        effects = [self._effect(e.axis, every=True) if e.needed else e for e in effects]
        needed = {effect.axis: effect.fails for effect in effects if effect.needed}
        return tuple(
            effect if effect.needed else replace(effect, possible=self._possible(effect, needed))
            for effect in effects
        )

    def _effect(self, axis: str, *, every: bool) -> AxisEffect:
        """How the test ends with other values of one axis.

        Runs every cheaper value, then more expensive ones until the result of one is known, or,
        with `every`, all of them.
        """
        mine = dict(self.smallest)[axis]
        values = self.space.values[axis]
        found: dict[AxisValue, _Found] = {mine: ("fails", self.smallest)}
        for value in values:
            later = values.index(value) > values.index(mine)
            if value != mine and (every or not later or not _known_after(mine, values, found)):
                tried = self._varied(axis, value)
                if tried is not None:
                    found[value] = tried
        untried = tuple(value for value in values if value not in found)
        passed = {value: point for value, (result, point) in found.items() if result == "passes"}
        far = {value: abs(values.index(value) - values.index(mine)) for value in passed}
        return AxisEffect(
            axis,
            mine,
            fails=_with_result("fails", found, values),
            passes=_with_result("passes", found, values),
            differs=_with_result("differs", found, values),
            untried=untried,
            reference=tuple(v for v in untried if self.space.is_reference(self._with(axis, v))),
            passed_at=passed[min(far, key=far.__getitem__)] if far else None,
        )

    def _with(self, axis: str, value: AxisValue) -> Point:
        return self.space.point({**dict(self.smallest), axis: value})

    def _varied(self, axis: str, value: AxisValue) -> _Found | None:
        """How the test ends if only `axis` changes, to `value`, and at which Point it was run.

        None if no Point was run.
        """
        point = self._with(axis, value)
        if self.space.is_reference(point):
            return self._without_axis(axis, point)
        return self._at(point) if self.space.is_valid(point) else None

    def _at(self, point: Point) -> _Found | None:
        result = self._result(point)
        return None if result is None else (result, point)

    def _without_axis(self, axis: str, reference: Point) -> _Found | None:
        """How the test ends without `axis`, the only parallel axis of the smallest failing Point.

        The Point without any parallel axis is the reference itself.  It cannot fail, so it does not
        show whether the failure needs `axis`.  Points at which one other mesh axis is parallel are
        run instead.  If one of them fails in the same way, the failure does not need `axis`; else,
        if one of them passes, it does.  None if no such Point was run.
        """
        values, found = dict(reference), list[_Found]()
        for name in self.space.mesh_axes:
            for value in self.space.values[name] if name != axis else ():
                point = self.space.point({**values, name: value})
                if self.space.is_valid(point):
                    found += filter(None, [self._at(point)])
                    break
            if found and found[-1][0] == "fails":
                return found[-1]
        return min(found, key=lambda each: each[0] != "passes", default=None)

    def _possible(
        self, effect: AxisEffect, needed: Mapping[str, Sequence[AxisValue]]
    ) -> tuple[AxisValue, ...] | None:
        """The values of an axis that the rules allow together with those of the needed axes.

        `needed` has the values with which the failure occurs.  Returns None if nothing is needed,
        if a cheaper value than that of the smallest failing Point is allowed, or if the rules would
        have to be applied to too many Points.
        """
        if not needed:
            return None
        values = self.space.values[effect.axis]
        mine = values.index(effect.value)
        allowed: list[AxisValue] = []
        for number, value in enumerate(values):
            known = value in (*effect.fails, *effect.differs)
            answer = known or self.space.allows({**needed, effect.axis: (value,)})
            if answer is None or (answer and number < mine):
                return None
            if answer:
                allowed.append(value)
        return tuple(allowed) if mine else None


def _with_result(
    result: Result, found: Mapping[AxisValue, _Found], values: Sequence[AxisValue]
) -> tuple[AxisValue, ...]:
    """Those of `values` with which the test ended so, in their order."""
    return tuple(value for value in values if value in found and found[value][0] == result)


def _known_after(
    mine: AxisValue, values: Sequence[AxisValue], found: Mapping[AxisValue, _Found]
) -> bool:
    """Whether the result of some value after `mine` is known."""
    return any(value in found for value in values[values.index(mine) + 1 :])
