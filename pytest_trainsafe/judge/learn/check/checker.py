"""The base class of the relations' checkers, and functions that they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_trainsafe.judge.learn.conditions import Features
from pytest_trainsafe.judge.learn.features import call_features, change_features
from pytest_trainsafe.judge.learn.names import family, variable
from pytest_trainsafe.judge.learn.watch import Contexts, Watch
from pytest_trainsafe.trace.observed.events import Call, Change


class Checker:
    """A Listener that ignores all events.  A subclass overrides the methods that it needs."""

    def __init__(self, contexts: Contexts) -> None:
        self.contexts = contexts

    def entered(self, call: Call) -> None:
        """A call begins."""

    def left(self, call: Call) -> None:
        """A call returned or raised."""

    def changed(self, change: Change) -> None:
        """An attribute changed, or was sampled."""

    def step_ended(self, step: int) -> None:
        """A step is over."""

    def of_call(self, call: Call) -> Features:
        """The features of a call."""
        return call_features(call, self.contexts.features(call.meta))

    def of_change(self, change: Change) -> Features:
        """The features of a change."""
        return change_features(change, self.contexts.features(change.meta))


def by_param(watches: Iterable[Watch], name: str) -> Mapping[str, Sequence[Watch]]:
    """The watches, grouped by the value of a parameter of their claims."""
    found: dict[str, list[Watch]] = defaultdict(list)
    for watch in watches:
        found[watch.claim.text(name)].append(watch)
    return dict(found)


def by_variable(watches: Iterable[Watch]) -> Mapping[tuple[str, str], Sequence[Watch]]:
    """The watches, grouped by the variable and the attribute of their claims."""
    found: dict[tuple[str, str], list[Watch]] = defaultdict(list)
    for watch in watches:
        found[watch.claim.text("variable"), watch.claim.text("attribute")].append(watch)
    return dict(found)


def name_of(call: Call) -> str:
    """The family of a call's API, or the API itself if it has none."""
    return family(call.api)[0]


def variable_of(change: Change) -> tuple[str, str]:
    """The kind of variable that changed, and its attribute."""
    return variable(change.object, change.type), change.attribute


def chain(call: Call | None) -> Iterator[Call]:
    """Yields a call and the calls in which it happened, innermost first."""
    while call is not None:
        yield call
        call = call.parent
