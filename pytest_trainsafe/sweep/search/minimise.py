"""Finds the smallest Point at which a test fails in the same way, and what each axis does to it.

First all axes outside the mesh take their cheapest values at once.  Then each axis in turn, mesh
axes first, takes a cheaper value, until no single axis can be made cheaper.  Finally each axis is
varied alone.  Every Point is run once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.sweep.search.interaction import AxisEffect, Interaction
from pytest_trainsafe.sweep.search.space import Space

#: How the test ends at a Point.  "fails": in the same way as where the search started; "differs":
#: it fails in another way.
Result = Literal["fails", "passes", "differs"]

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
        effects = [self._effect(axis) for axis in several]
        needed = [effect.axis for effect in effects if effect.needed]
        return tuple(
            effect if effect.needed else replace(effect, implied=self._is_implied(effect, needed))
            for effect in effects
        )

    def _effect(self, axis: str) -> AxisEffect:
        """How the test ends with other values of one axis.

        Runs every cheaper value, then more expensive ones until the result of one is known.
        """
        mine = dict(self.smallest)[axis]
        values = self.space.values[axis]
        here = values.index(mine)
        found: dict[Result, list[AxisValue]] = {"fails": [], "passes": [], "differs": []}
        for value in values[:here]:
            self._vary(axis, value, found)
        found["fails"].append(mine)
        for value in values[here + 1 :]:
            if self._vary(axis, value, found):
                break
        return AxisEffect(
            axis, mine, tuple(found["fails"]), tuple(found["passes"]), tuple(found["differs"])
        )

    def _vary(self, axis: str, value: AxisValue, found: dict[Result, list[AxisValue]]) -> bool:
        """Finds how the test ends if only `axis` changes, to `value`.

        Adds the value to the list of this result in `found`.  Returns False if the result remains
        unknown.
        """
        point = self.space.point({**dict(self.smallest), axis: value})
        if self.space.is_reference(point):
            result: Result | None = self._without_axis(axis, point)
        else:
            result = self._result(point) if self.space.is_valid(point) else None
        if result is None:
            return False
        found[result].append(value)
        return True

    def _without_axis(self, axis: str, reference: Point) -> Result:
        """How the test ends without `axis`, the only parallel axis of the smallest failing Point.

        The Point without any parallel axis is the reference itself.  It always passes, so it cannot
        show whether the failure needs `axis`.  Points at which one other mesh axis is parallel are
        run instead.  If one of them fails, the failure does not need `axis`.
        """
        values = dict(reference)
        for name in self.space.mesh_axes:
            for value in self.space.values[name] if name != axis else ():
                point = self.space.point({**values, name: value})
                if self.space.is_valid(point):
                    if self._result(point) == "fails":
                        return "fails"
                    break
        return "passes"

    def _is_implied(self, effect: AxisEffect, needed: Sequence[str]) -> bool:
        """Whether the rules allow no cheaper value of an axis while the needed axes keep theirs."""
        values = self.space.values[effect.axis]
        cheaper = values[: values.index(effect.value)]
        return bool(cheaper and needed) and not any(
            self.space.moved(self.smallest, effect.axis, value, kept=needed) for value in cheaper
        )
