"""Describes a random stream that was not restored: by how many draws, and which.

The state in which the resumed Run finds the generator is looked for among the states of the other
Run, and the other way round; the draws since that state are the additional or missing ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trainsafe.core.finding import StreamSubject
from pytest_trainsafe.judges.replay.resume.difference import Difference
from pytest_trainsafe.judges.replay.resume.state import place_of, state_after
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws, describe_draw, when
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import position

_CAUSE = (
    "save the states of all generators on every rank, and restore a rank's own after everything "
    "that draws while it loads; TrainingCheckpoint does so"
)
_AHEAD = (
    "restore the generators' states last, after the model, the loaders and their iterators are "
    "made: an iterator of a torch DataLoader draws a seed"
)
_BEHIND = (
    "save the generators' states after the last draw before the next step, or repeat these draws "
    "in the resumed training"
)
_OTHER_RANK = (
    "each rank saves the states of its own generators, under a name with its rank in it, and "
    "restores these"
)


@dataclass(frozen=True, slots=True)
class Stream:
    """A generator of one rank whose state differs between the resumed and the uninterrupted Run.

    The states are compared before each draw; if no draw shows a difference, at the end of the
    training.  `wanted` is the first state that differs, in the uninterrupted Run, and `found` is
    the corresponding state in the resumed Run.  `expected` has all draws from the generator before
    `wanted` in the uninterrupted Run, and `made` all draws before `found` in the resumed Run.
    `restored` says whether the generator is in the same state in both Runs when the first resumed
    step begins, or at its first draw after that. `expected_after` and `made_after` have all draws
    from the generator after that, and `first` the first pair of draws that begin in different
    states; it is None if no draw shows the difference.
    """

    rank: int
    generator: str
    wanted: str
    found: str
    made: Sequence[Draw]
    expected: Sequence[Draw]
    restored: bool = False
    expected_after: Sequence[Draw] = ()
    made_after: Sequence[Draw] = ()
    first: tuple[Draw, Draw] | None = None


def lost_difference(stream: Stream, saved: Trace, steps: int) -> Difference:
    """Describes a stream that was not restored, by its state in the uninterrupted Run `saved`.

    `steps` is the number of steps before the checkpoint.
    """
    name, rank = stream.generator, stream.rank
    begin = f"{name} of rank {rank}"
    source, count = "", 0
    other: int | None = None
    if (ahead := _from(stream.made, stream.wanted)) is not None:
        count = _count(ahead)
        many = f"{_draws(count, stream.wanted, stream.found)} ahead"
        text = f"{begin} is {many}: the resumed training also draws {_calls(ahead)}"
        cause, source = _AHEAD, ahead[0].event.line
    elif (behind := _from(stream.expected, stream.found)) is not None:
        count = -_count(behind)
        many = f"{_draws(-count, stream.found, stream.wanted)} behind"
        draw = behind[0]
        since = " between the checkpoint and its next step"
        if draw.event.step < steps:
            since = f" in {when(draw)}" if draw.event.phase != "save" else " while it saves"
        text = (
            f"{begin} is {many}: it continues from before {_calls(behind)}, which the "
            f"uninterrupted training draws{since}"
        )
        cause, source = (_BEHIND if draw.event.step >= steps else _CAUSE), draw.event.line
    elif (other := _other_rank(stream, saved, steps)) is not None:
        text = f"{begin} continues in the state of rank {other}"
        cause = _OTHER_RANK
    else:
        text = (
            f"{begin} continues in a state in which the uninterrupted training did not find it "
            f"before ({stream.found} and not {stream.wanted})"
        )
        cause = _CAUSE
    return Difference(
        "rng",
        text,
        cause,
        rank,
        subject=StreamSubject(name, rank),
        source=source,
        evidence=(
            ("generator", name),
            ("draws", count),
            ("state", stream.found),
            ("expected", stream.wanted),
            *(() if other is None else (("state_of_rank", other),)),
        ),
    )


def _from(draws: Sequence[Draw], state: str) -> Sequence[Draw] | None:
    """The last draw that found its generator in `state`, and all later draws; None if none did."""
    for index in reversed(range(len(draws))):
        if draws[index].event.before == state:
            return draws[index:]
    return None


def _count(draws: Sequence[Draw]) -> int:
    return sum(draw.event.count for draw in draws)


def _draws(count: int, start: str, end: str) -> str:
    """A text such as "2 draws (8 numbers)".

    The count of 32-bit numbers is the distance between the generator's states `start` and `end`.
    It is left out if it is unknown or not larger than `count`.
    """
    one, other = position(start), position(end)
    same = start.partition(".")[0] == end.partition(".")[0]
    numbers = other - one if same and one is not None and other is not None else 0
    many = f" ({numbers} numbers)" if numbers > count else ""
    return f"{count} draw{'s' if count != 1 else ''}{many}"


def _calls(draws: Sequence[Draw]) -> str:
    """A text that describes the first of these draws and counts the others."""
    others = _count(draws) - 1
    return f"{describe_draw(draws[0])}{f' and {others} more' if others else ''}"


def _other_rank(stream: Stream, saved: Trace, steps: int) -> int | None:
    """The first other rank from which the resumed Run may have taken the state `stream.found`.

    In the uninterrupted Run `saved`, the generator of the same name on that rank had this state at
    the checkpoint or at a later draw. Returns None if there is no such rank.
    """
    for rank in saved.ranks:
        if rank.rank == stream.rank:
            continue
        state = state_after(rank, steps)
        if state is not None and state.of("rng").get(stream.generator) == stream.found:
            return rank.rank
        place = place_of(rank, steps)
        draws = (draw for draw in Draws.of(saved).by_rank[rank.rank] if draw.order > (place or 0))
        if any(
            draw.event.generator == stream.generator and draw.event.before == stream.found
            for draw in draws
        ):
            return rank.rank
    return None
