"""Finds the first draw at which a restored random stream is used differently in the resumed Run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pytest_trainsafe.core.finding import StreamSubject
from pytest_trainsafe.judges.replay.resume.difference import Difference
from pytest_trainsafe.judges.replay.resume.streams.lost import Stream
from pytest_trainsafe.judges.replay.rng.draws import Draw, describe_draw, when
from pytest_trainsafe.trace.rng.events import Phase

_CAUSE = (
    "the generator itself was restored: find why the resumed training makes other calls. A call "
    "that only the start of a training makes, such as iter() of a torch DataLoader, must come "
    "before the generators' states are restored"
)

#: The phases in which a model draws.
_IN_MODEL: frozenset[Phase] = frozenset({"forward", "recomputation", "backward"})


@dataclass(frozen=True, slots=True)
class Drift:
    """Where two Runs first draw differently from a stream that is in the same state in both.

    `step` is the step of that draw. `calls` says whether the Runs make different calls; if it is
    False, the same call draws another amount of numbers, or the call is not known. `in_model` says
    whether a module of the model makes the call.
    """

    difference: Difference
    step: int
    calls: bool = False
    in_model: bool = False


def drift_of(stream: Stream, last: int) -> Drift | None:
    """Where a stream that was restored is first used differently in `last` steps.

    None if the same calls draw the same until the program itself sets the generator, to different
    states.
    """
    for a, b in itertools.zip_longest(stream.expected_after, stream.made_after):
        known = b or a
        assert known is not None
        if a is not None and b is not None and _call(a) == _call(b):
            if a.event.before != b.event.before:
                return None
            if a.event.after == b.event.after:
                continue
            text = f"{_described(b)} leaves it in another state"
            calls = False
        else:
            text = (
                f"the resumed training draws {_described(b)}, the uninterrupted one {_described(a)}"
            )
            calls = True
        step, inside = known.event.step, known.event.phase in _IN_MODEL
        return Drift(_difference(stream, text, known.event.line), step, calls, inside)
    return Drift(_difference(stream, f"it ends in another state after {last} steps"), last)


def _call(draw: Draw) -> object:
    event = draw.event
    return event.phase, event.step, event.microbatch, event.module, event.line, event.operator


def _described(draw: Draw | None) -> str:
    return "nothing more" if draw is None else f"{describe_draw(draw)} in {when(draw)}"


def _difference(stream: Stream, text: str, source: str = "") -> Difference:
    name, rank = stream.generator, stream.rank
    return Difference(
        "rng",
        f"{name} of rank {rank} is restored, and then used differently: {text}",
        _CAUSE,
        rank,
        subject=StreamSubject(name, rank),
        source=source,
        evidence=(("generator", name), ("state", stream.found), ("expected", stream.wanted)),
    )
