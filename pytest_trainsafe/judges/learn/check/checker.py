"""The base class of the relations' checkers, and functions that they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_trainsafe.judges.learn.conditions import Features
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.names import family, variable
from pytest_trainsafe.judges.learn.watch import Contexts, Watch


class Checker:
    """A Listener that ignores all events.  A subclass overrides the methods that it needs."""

    def __init__(self, contexts: Contexts) -> None:
        self.contexts = contexts

    def entered(self, call: Call) -> None:
        """Called when a call begins."""

    def left(self, call: Call) -> None:
        """Called when a call has returned or raised."""

    def changed(self, change: Change) -> None:
        """Called when an attribute has changed, or was sampled at the end of a step."""

    def step_ended(self, step: int) -> None:
        """Called when the training step `step` has ended."""

    def reads_calls(self, api: str) -> bool:
        """Whether the checker reads calls of an API (`name_of`); others are not passed to it."""
        return True

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        """Whether the checker reads changes of a variable (`variable_of`)."""
        return True

    def of_call(self, call: Call) -> Features:
        """What preconditions may read of a call, by name of the field, such as "phase"."""
        return self.contexts.of(call)

    def of_change(self, change: Change) -> Features:
        """What preconditions may read of a change, by name of the field, such as "phase"."""
        return self.contexts.of(change)


class CallChecker(Checker):
    """A Checker that reads the calls of the APIs that its claims name, and no changes.

    `watches` has the watches by API.
    """

    def __init__(self, watches: Iterable[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self.watches = by_param(watches, "api")

    def reads_calls(self, api: str) -> bool:
        return api in self.watches

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return False


def by_param(watches: Iterable[Watch], name: str) -> Mapping[str, Sequence[Watch]]:
    """The watches, grouped by the value of the parameter `name` of their claims, such as "api"."""
    found: dict[str, list[Watch]] = defaultdict(list)
    for watch in watches:
        found[watch.claim.text(name)].append(watch)
    return dict(found)


def by_variable(watches: Iterable[Watch]) -> Mapping[tuple[str, str], Sequence[Watch]]:
    """The watches, grouped by the kind of variable and the attribute that their claims name.

    A key is a pair such as ("torch.nn.Parameter", "grad").
    """
    found: dict[tuple[str, str], list[Watch]] = defaultdict(list)
    for watch in watches:
        found[watch.claim.text("variable"), watch.claim.text("attribute")].append(watch)
    return dict(found)


def name_of(call: Call) -> str:
    """The name that rules use for a call's API, as "torch.optim.*.step" (`names.family`)."""
    return family(call.api)[0]


def variable_of(change: Change) -> tuple[str, str]:
    """The kind of object that changed, and the attribute, as ("torch.nn.Parameter", "grad")."""
    return variable(change.object, change.type), change.attribute


def chain(call: Call | None) -> Iterator[Call]:
    """Yields a call and the calls in which it happened, innermost first."""
    while call is not None:
        yield call
        call = call.parent
