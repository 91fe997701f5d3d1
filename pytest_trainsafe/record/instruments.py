"""The instruments of a Run, in their order."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

from pytest_trainsafe import wings
from pytest_trainsafe.record.hooks.changes import Changes
from pytest_trainsafe.record.instrument import Instrument, Recording, WatchedModel

_Kind = TypeVar("_Kind", bound=Instrument)


class Instruments:
    """A Run's instruments: those of this package's wings, and those that its RunSpec names."""

    def __init__(self) -> None:
        self._made: list[Instrument] = []
        self._calls: dict[str, list[Callable[..., Any]]] = {}

    def make(self, recorder: Recording) -> None:
        """Makes the instruments, each after those that must come first."""
        kinds = [
            *wings.objects(wings.INSTRUMENTS),
            *map(pkgutil.resolve_name, recorder.spec.instruments),
        ]
        for kind in in_order(kinds):
            self._made.append(kind(recorder))

    def get(self, kind: type[_Kind]) -> _Kind:
        """The instrument of a class, which must have been made before."""
        return next(each for each in self._made if isinstance(each, kind))

    def has(self, name: str) -> bool:
        """Whether there is an instrument of this name."""
        return any(each.name == name for each in self._made)

    def call(self, method: str, *args: object) -> None:
        """Calls a method of all instruments, in their order."""
        for each in self._calls_of(method):
            each(*args)

    def call_backwards(self, method: str, *args: object) -> None:
        """Calls a method of all instruments, in the opposite order."""
        for each in reversed(self._calls_of(method)):
            each(*args)

    def within(self, method: str, *args: object) -> AbstractContextManager[object]:
        """Encloses a block by the context managers that a method of all instruments returns."""
        calls = self._calls_of(method)
        return calls[0](*args) if len(calls) == 1 else _within(calls, args)

    def changes(self, watched: WatchedModel) -> Changes:
        """What the Run changes in the values that the model computes."""
        found = [each(watched) for each in self._calls_of("changes")]
        return next((each for each in found if each is not None), Changes())

    def folder(self, method: str) -> Iterator[Any]:
        """Yields the folder of the first instrument that implements `saving` or `loading`."""
        calls = self._calls_of(method)
        yield from calls[0]() if calls else iter([None])

    def _calls_of(self, method: str) -> list[Callable[..., Any]]:
        """The instruments' methods of a name, without those that do nothing."""
        if method not in self._calls:
            idle = getattr(Instrument, method)
            self._calls[method] = [
                getattr(each, method)
                for each in self._made
                if getattr(type(each), method) is not idle
            ]
        return self._calls[method]


@contextmanager
def _within(calls: Sequence[Callable[..., Any]], args: Sequence[object]) -> Iterator[None]:
    with ExitStack() as entered:
        for each in calls:
            entered.enter_context(each(*args))
        yield


def in_order(kinds: Sequence[type[Instrument]]) -> list[type[Instrument]]:
    """The classes in an order in which each comes after those that it names, if they exist.

    Classes that need no other place keep theirs.  Raises ValueError for two classes of one name,
    and for classes that name each other.
    """
    names = [kind.name for kind in kinds]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two instruments have the name {twice[0]!r}; rename one of them")
    left, found = list(kinds), []
    while left:
        waiting = {kind.name for kind in left}
        ready = next((kind for kind in left if waiting.isdisjoint(kind.after)), None)
        if ready is None:
            raise ValueError(
                f"the instruments {', '.join(sorted(waiting))} must each come after another of them"
            )
        left.remove(ready)
        found.append(ready)
    return found
