"""Finds the first draw in which two ledgers of the same step differ.

Used to compare a replay with its original: by the judge on two traces, and inside a training
program on the draws of the first step after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from pytest_trainsafe.trace.rng.events import (
    NUMPY,
    PYTHON,
    DrawEvent,
    UnseenDraws,
    position,
)

#: An event by which a generator of the training process advances. Draws of loaders' workers are not
#: compared: they arrive in any order, and follow from the seed that the loader draws here.
Advance = DrawEvent | UnseenDraws


@dataclass(frozen=True, slots=True)
class DrawDifference:
    """The first draw that differs between an original and its replay.

    `number` is its number, counted from 1. `original` and `replayed` are the draws with this number
    in the two, or None if there is no such draw. `hint` says how the replay's state relates to the
    original's states, or is "".
    """

    number: int
    original: Advance | None
    replayed: Advance | None
    hint: str = ""

    def __str__(self) -> str:
        if self.replayed is None:
            assert self.original is not None
            return f"draw {self.number} is missing: the original made {described(self.original)}"
        if self.original is None:
            return (
                f"draw {self.number} is one too many: the replay makes {described(self.replayed)}, "
                "and the original made no further draw"
            )
        return (
            f"draw {self.number} differs: the replay makes {described(self.replayed)}, and the "
            f"original made {described(self.original)}{self.hint and f'; {self.hint}'}"
        )


def advances(events: Iterable[msgspec.Struct]) -> list[Advance]:
    """The events that advance generators of the training process, in the order of time."""
    return [event for event in events if isinstance(event, DrawEvent | UnseenDraws)]


def first_difference(
    original: Sequence[Advance], replayed: Sequence[Advance], *, whole: bool = True
) -> DrawDifference | None:
    """The first draw that differs in its generator, its operator, its shape or its states.

    `whole` says that both sequences are complete.  If it is False, one of them ended early, and the
    draws of the other beyond this end are not compared.  Returns None if no draw differs.
    """
    count = (max if whole else min)(len(original), len(replayed))
    for number in range(count):
        here = original[number] if number < len(original) else None
        there = replayed[number] if number < len(replayed) else None
        if here is None or there is None or _key(here) != _key(there):
            return DrawDifference(number + 1, here, there, _hint(original, here, there))
    return None


def described(event: Advance) -> str:
    """A description of a draw: operator, shape, generator, line and state."""
    if isinstance(event, UnseenDraws):
        return f"a draw from {event.generator} that is not made by an operator of torch"
    shape = f" ({'x'.join(map(str, event.shape))})" if event.shape else ""
    times = f" {event.count} times" if event.count > 1 else ""
    line = f" at {event.line}" if event.line else ""
    operator = event.operator or "a draw"
    return f"{operator}{shape}{times}{line} from {event.generator} in state {event.before}"


def _key(event: Advance) -> tuple[object, ...]:
    states = event.before, event.after
    if isinstance(event, UnseenDraws):
        return (_name(event.generator), *states)
    return (_name(event.generator), *states, event.operator, event.shape, event.count)


def _name(generator: str) -> str:
    """The generator's name without the source line that created the generator.

    For example "torch.Generator" for "torch.Generator of train.py:12": the line's number changes
    if lines are added above it.
    """
    return generator if generator in (NUMPY, PYTHON) else generator.partition(" of ")[0]


def _hint(original: Sequence[Advance], here: Advance | None, there: Advance | None) -> str:
    """A text that relates the replay's state to the states of the original; "" if none is known."""
    if here is None or there is None or here.before == there.before:
        return ""
    for number, event in enumerate(original):
        if event.before == there.before and _name(event.generator) == _name(there.generator):
            return f"the replay is in the state in which the original made draw {number + 1}"
    apart = _apart(here.before, there.before)
    if apart is None:
        return ""
    way = "ahead of" if apart > 0 else "behind"
    numbers = "1 number" if abs(apart) == 1 else f"{abs(apart)} numbers"
    return f"the replay is {numbers} {way} the original"


def _apart(here: str, there: str) -> int | None:
    """How many numbers the generator state `there` is ahead of the state `here`.

    None if they are in different blocks: generators compute their numbers in blocks.
    """
    first, second = position(here), position(there)
    if first is None or second is None or here.partition(".")[0] != there.partition(".")[0]:
        return None
    return second - first
