"""How long localisations may take, and which failures need none of their own.

One Budget per pytest process.  Called by `judge.localize.search`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pytest_trainsafe.core.finding import Located

if TYPE_CHECKING:
    from pytest_trainsafe.runs.session import Session

#: A process may spend as much on localisation as this many tests may.
TESTS = 10

#: What determines a family of failures: the program with its arguments, the rung, and what is
#: wrong first.
Family = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """What a localisation found, and the test that failed."""

    nodeid: str
    located: Located


class Budget:
    """The seconds that localisations took in this process, and what they found, by family."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._known: dict[Family, Known] = {}

    def allows(self, seconds: float) -> float:
        """The seconds for one more localisation, of which a test may take `seconds`."""
        return max(0.0, min(seconds, TESTS * seconds - self.spent))

    def take(self, seconds: float) -> None:
        """Count the seconds of a localisation."""
        self.spent += seconds

    def keep(self, family: Family, nodeid: str, located: Located) -> None:
        """Remember what was found of a failure, for others of its family."""
        if located.faults:
            self._known.setdefault(family, Known(nodeid, located))

    def known(self, family: Family) -> Known | None:
        """What was found of an earlier failure of the family."""
        return self._known.get(family)


#: One budget for each session: a process has one session, and a test may make another.
_BUDGETS: WeakKeyDictionary[Session, Budget] = WeakKeyDictionary()


def budget_of(session: Session) -> Budget:
    """The budget that the tests of a session share."""
    return _BUDGETS.setdefault(session, Budget())


def replace_budget(session: Session, budget: Budget) -> None:
    """Give a session another budget: tests and benchmarks measure with one of their own."""
    _BUDGETS[session] = budget
