"""Searches for failures of a fuzz test that differ from its first one.

Called once the first failure is explained.  Like hypothesis with `report_multiple_bugs`, the search
ends if it has found nothing new for as many examples as it took to find the last failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.fuzz.failure import FlakyProgram

if TYPE_CHECKING:
    from pytest_trainsafe.fuzz.failures.ending import Ending
    from pytest_trainsafe.fuzz.failures.explain import Explained, Explainer
    from pytest_trainsafe.fuzz.runner import Test
    from pytest_trainsafe.sweep.search.interaction import Interaction
    from pytest_trainsafe.sweep.search.space import Space

#: The search runs examples until there are at least so many in all.
MIN_EXAMPLES = 10
#: The most Points that are drawn to find examples that known failures do not explain.
MAX_DRAWN = 1000


class Failures:
    """The failures of a fuzz test that differ from each other.

    `found` has the explained failures.  `further` is the number of examples that were run after the
    first one.  `flaky` says of failures that are not reproducible where they occurred.
    `endings` says how the test ended at each Point that was run.
    """

    def __init__(
        self,
        space: Space,
        endings: Mapping[Point, Ending],
        explainer: Explainer,
        first: Explained,
    ) -> None:
        self.found = [first]
        self.further = 0
        self.flaky: list[str] = []
        self._space = space
        self._endings = endings
        self._explainer = explainer
        self._known = {first.bug}

    def search(self, test: Test, most: int, max_examples: int) -> None:
        """Runs further examples until there are `most` failures, or new ones become unlikely.

        `max_examples` limits the number of all examples of the test.
        """
        before = last = self.found[0].examples
        drawn = self._drawn()
        while len(self.found) < most:
            point = self._unexplained()
            if point is not None:
                self._add(point, before + self.further, test)
                last = before + self.further
                continue
            if before + self.further >= min(max_examples, max(MIN_EXAMPLES, 2 * last)):
                return
            point = next(drawn, None)
            if point is None:
                return
            self._explainer.ending(point)
            self.further += 1

    def _drawn(self) -> Iterator[Point]:
        """Yields Points that were not run and that no known failure explains."""
        for values in self._space.drawn_at_random(MAX_DRAWN):
            point = self._space.repaired(values)
            explained = (settled(self._space, e.interaction, point) != point for e in self.found)
            if point not in self._endings and not any(explained):
                yield point

    def _unexplained(self) -> Point | None:
        """The first Point that was run and failed in a way that is not known yet."""
        failing = ((p, e.bug) for p, e in self._endings.items() if e.end == "fails")
        return next((point for point, bug in failing if bug not in self._known), None)

    def _add(self, point: Point, examples: int, test: Test) -> None:
        """Explains the failure at a Point; joins it to a known one if the same code is at fault."""
        self._known.add(self._endings[point].bug)
        try:
            new = self._explainer.explain(point, examples, test)
        except FlakyProgram:
            self.flaky.append(f"another failure at {point} did not repeat and is left out")
            return
        for number, known in enumerate(self.found):
            if new.place is not None and known.place == new.place:
                also = (*known.also, new.interaction.point)
                self.found[number] = replace(known, also=also)
                return
        self.found.append(new)


def settled(space: Space, interaction: Interaction, point: Point) -> Point:
    """The smallest failing Point if `point` has every axis value that the failure needs.

    Otherwise `point` itself.
    """
    own = dict(point)
    for effect in interaction.needs:
        cost = space.values[effect.axis].index
        value = own[effect.axis]
        if value in effect.passes or cost(value) < min(map(cost, effect.fails)):
            return point
    return interaction.point
