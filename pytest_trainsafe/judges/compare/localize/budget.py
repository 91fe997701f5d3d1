"""Limits the time of localisations, and reuses the results of failures with a common cause.

There is one Budget per session.  Time in which other test runs hold the ranks of the machine does
not count.  Called by `judges.compare.localize.search`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from pytest_trainsafe.judges.compare.fault.located import Located

if TYPE_CHECKING:
    from pytest_trainsafe.runs.execution.scheduler import Scheduler

T = TypeVar("T")

#: The localisations of a session may together take this many times the limit of one test.
TESTS = 10

#: What identifies a family of failures: the program with its arguments, the dtype, and the first
#: wrong tensor.
Family = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class LocatedBefore:
    """The result of an earlier localisation, and the id of the test that failed."""

    nodeid: str
    located: Located


#: Seconds between two looks at how long other test runs have held this one up.
_LOOK = 1.0


class Deadline:
    """A limit of `seconds` from now; `held_up` returns the seconds that do not count."""

    def __init__(self, seconds: float, held_up: Callable[[], float]) -> None:
        self.seconds, self._held_up = seconds, held_up
        self._began = time.monotonic() - held_up()

    @property
    def spent(self) -> float:
        """The seconds that have passed, without those that do not count."""
        return time.monotonic() - self._held_up() - self._began

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.spent >= self.seconds

    def wait(self, future: Future[T]) -> T:
        """The future's result; raises TimeoutError if it has none when no time is left."""
        while True:
            left = max(0.0, self.seconds - self.spent)
            try:
                return future.result(min(left, _LOOK))
            except TimeoutError:
                if future.done() or self.passed:
                    raise


class Budget:
    """The seconds spent on localisations in a session, and their results.

    Failures that probably have one cause form a family (`Family`).  One result is kept for each
    family.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self._known: dict[Family, LocatedBefore] = {}
        self._late: dict[Family, tuple[str, float]] = {}

    def allows(self, seconds: float) -> float:
        """The seconds that one more localisation may take; `seconds` is the limit of one test."""
        return max(0.0, min(seconds, TESTS * seconds - self.spent))

    def take(self, seconds: float) -> None:
        """Add the seconds that a localisation took."""
        self.spent += seconds

    def keep(self, family: Family, nodeid: str, located: Located) -> None:
        """Store the result for other failures of the family, if it names faults."""
        if located.faults:
            self._known.setdefault(family, LocatedBefore(nodeid, located))

    def known(self, family: Family) -> LocatedBefore | None:
        """The result for an earlier failure of the family; None if there is none."""
        return self._known.get(family)

    def ran_out(self, family: Family, nodeid: str, seconds: float) -> None:
        """Store that the search for a failure of the family stopped at its limit of `seconds`."""
        self._late[family] = nodeid, seconds

    def late(self, family: Family, seconds: float) -> str | None:
        """The id of the test for whose failure of the family `seconds` were not enough, if any."""
        nodeid, limit = self._late.get(family, ("", 0.0))
        return nodeid if limit >= seconds else None


#: One budget per session: a test may create a second session in the same process.
_BUDGETS: WeakKeyDictionary[Scheduler, Budget] = WeakKeyDictionary()


def budget_of(scheduler: Scheduler) -> Budget:
    """The budget that the tests of a session share, whose Runs `scheduler` launches."""
    return _BUDGETS.setdefault(scheduler, Budget())


def replace_budget(scheduler: Scheduler, budget: Budget) -> None:
    """Replace a session's budget, for tests and benchmarks."""
    _BUDGETS[scheduler] = budget
