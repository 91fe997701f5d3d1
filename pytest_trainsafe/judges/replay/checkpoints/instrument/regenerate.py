"""Regenerates random values instead of saving them: DETrain's fast-forwarding.

A shuffled dataset is large, but the states from which it was drawn are not. The program passes the
function that draws it to `ReplayCheckpoint.regenerates`; the checkpoint contains the states of the
generators before the calls, and `fast_forward` repeats the calls, without the training between
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError, ReplayMismatchError
from pytest_trainsafe.judges.replay.checkpoints.instrument.generators import Source
from pytest_trainsafe.judges.replay.checkpoints.instrument.operations import regenerating, returned
from pytest_trainsafe.judges.replay.checkpoints.instrument.run import unrecorded_draws

_Made = TypeVar("_Made")

#: Which calls are repeated: the last one alone, or all of them.
Keep = Literal["last", "all"]
KEEP: tuple[Keep, ...] = ("last", "all")


@dataclass(slots=True)
class Calls:
    """Calls of a regenerated function, with no other draws from its generators between them.

    `states` are the states, before the first call, of the generators that were drawn from;
    `after` has their states after the last call, as the ledger writes them.
    """

    count: int
    states: dict[str, Any]
    after: dict[str, str]


@dataclass(slots=True)
class Regenerated(Generic[_Made]):
    """A function that draws and whose calls can be repeated; see `ReplayCheckpoint.regenerates`.

    Call it instead of the function. `calls` has the data to repeat the calls so far.
    """

    name: str
    draws: Callable[[], _Made]
    keep: Keep
    sources: Callable[[], Mapping[str, Source]]
    calls: list[Calls] = field(default_factory=list)
    #: Called when the calls have been repeated.
    regenerated: Callable[[], None] = field(default=lambda: None)

    def __call__(self) -> _Made:
        sources = self.sources()
        states = {name: source.read() for name, source in sources.items()}
        before = {name: source.text() for name, source in sources.items()}
        with regenerating(self.name):
            made = self.draws()
        returned(self.name, made)
        after = {name: text for name, s in sources.items() if (text := s.text()) != before[name]}
        last = self.calls[-1] if self.calls else None
        if self.keep == "last":
            self.calls = [Calls(1, {name: states[name] for name in after}, after)]
        elif last is not None and last.after == {name: before[name] for name in after}:
            last.count, last.after = last.count + 1, after
        else:
            self.calls.append(Calls(1, {name: states[name] for name in after}, after))
        return made


def fast_forward(regenerated: Regenerated[_Made], *, skip: int = 0) -> _Made:
    """Repeats the calls that led to a loaded checkpoint; returns the result of the last one.

    Call it after `ReplayCheckpoint.load`. A function with `keep="last"` repeats only its last
    call, and one with `keep="all"` every call, from the states in the checkpoint. Then `skip`
    items are taken from the returned iterator, such as the batches of the current epoch that
    were used before the checkpoint. At the end all generators are restored. Raises
    ReplayMismatchError if the repeated calls draw other numbers than the original calls, and
    ArgumentError if the checkpoint has no call to repeat.
    """
    if not isinstance(regenerated, Regenerated):
        raise ArgumentTypeError(
            f"fast_forward was given {shown(regenerated)}; pass an object that "
            "ReplayCheckpoint.regenerates returned"
        )
    if type(skip) is not int or skip < 0:
        raise ArgumentTypeError(
            f"fast_forward was given skip={shown(skip)}; pass the number of items to skip, an "
            "integer of 0 or more"
        )
    if not regenerated.calls:
        raise ArgumentError(
            f"fast_forward was given {regenerated.name!r}, which had not been called when the "
            "checkpoint was saved; call the function itself, as in a run from the start"
        )
    sources = regenerated.sources()
    with unrecorded_draws(), _put_back(sources):
        for calls in regenerated.calls:
            for name, state in calls.states.items():
                sources[name].restore(state)
            for _ in range(calls.count):
                made = regenerated.draws()
            _require_same(regenerated.name, calls, sources)
        for number in range(skip):
            try:
                next(made)  # type: ignore[call-overload]
            except StopIteration:
                raise ArgumentError(
                    f"fast_forward was given skip={skip}, but the iterator that "
                    f"{regenerated.name!r} returned has only {number} items"
                ) from None
            except TypeError as error:
                raise ArgumentTypeError(
                    f"fast_forward was given skip={skip}, but {regenerated.name!r} returned "
                    f"{shown(made)}, which has no items to skip; let the function return an "
                    "iterator, such as iter(loader)"
                ) from error
    regenerated.regenerated()
    return made


def _require_same(name: str, calls: Calls, sources: Mapping[str, Source]) -> None:
    for generator, after in calls.after.items():
        found = sources[generator].text()
        if found != after:
            raise ReplayMismatchError(
                f"fast_forward of {name!r} does not draw the original's random numbers: after "
                f"{calls.count} call{'s' * (calls.count > 1)}, {generator} is in state {found}, "
                f"but the original left it in state {after}. The function draws more, fewer or "
                "other numbers than when the checkpoint was saved"
            )


@contextmanager
def _put_back(sources: Mapping[str, Source]) -> Iterator[None]:
    states = {name: source.read() for name, source in sources.items()}
    try:
        yield
    finally:
        for name, source in sources.items():
            source.restore(states[name])
