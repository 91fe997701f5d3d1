"""Finds random streams that the resumed Run continues at a different position, and why.

The state in which a draw finds its generator is compared with that of the same draw in the
uninterrupted Run. If the two differ, the state of one Run is looked for among the earlier states of
the other Run; the draws since that state are the additional or missing ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_trainsafe.core.finding import StreamSubject
from pytest_trainsafe.judge.replay.draws import Draw, Draws, describe_draw, when
from pytest_trainsafe.judge.replay.evaluation import is_loader_seed
from pytest_trainsafe.judge.replay.resume.difference import Difference
from pytest_trainsafe.judge.replay.resume.state import state_after
from pytest_trainsafe.trace.facts import TrainingState
from pytest_trainsafe.trace.reader import RankTrace, Trace
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
class _Stream:
    """A generator of one rank whose state differs between the resumed and the uninterrupted Run.

    The states are compared before each draw; if no draw shows a difference, at the end of the
    training.  `wanted` is the first state that differs, in the uninterrupted Run, and `found` is
    the corresponding state in the resumed Run.  `expected` has all draws from the generator before
    `wanted` in the uninterrupted Run, and `made` all draws before `found` in the resumed Run.
    """

    rank: int
    generator: str
    wanted: str
    found: str
    made: Sequence[Draw]
    expected: Sequence[Draw]


def stream_differences(
    whole: Trace, saved: Trace, resumed: Trace, steps: int, last: int, *, seeds: bool
) -> list[Difference]:
    """The streams that continue at a different position, one for each generator and cause.

    `steps` is the number of steps before the checkpoint, and `last` that of the whole training.
    If `seeds` is False, the seeds that torch's loaders draw are ignored; such a seed
    influences only the data. A generator that draws differently in the two uninterrupted Runs,
    `whole` and `saved`, is not seeded, and is excluded.
    """
    first, one, other = Draws.of(whole), Draws.of(saved), Draws.of(resumed)
    found: dict[tuple[str, str], list[Difference]] = {}
    for rank in saved.ranks:
        pairs = _pairs(*(_after(each.by_rank[rank.rank], -1, seeds) for each in (first, one)))
        unseeded = {b.event.generator for a, b in pairs if a.event.before != b.event.before}
        for stream in _apart(rank, resumed.ranks[rank.rank], one, other, steps, last, seeds):
            if stream.generator in unseeded:
                continue
            made = _difference(stream, saved, steps)
            found.setdefault((stream.generator, made.cause), []).append(made)
    return [_joined(each) for each in found.values()]


def _joined(found: Sequence[Difference]) -> Difference:
    """The first of the differences of several ranks; its message also names the other ranks."""
    first = found[0]
    if len(found) == 1:
        return first
    ranks = ", ".join(str(each.rank) for each in found[1:])
    likewise = f"rank{'s' if len(found) > 2 else ''} {ranks} likewise"
    return replace(first, message=f"{first.message}; {likewise}")


def _apart(
    rank: RankTrace,
    again: RankTrace,
    one: Draws,
    other: Draws,
    steps: int,
    last: int,
    seeds: bool,
) -> Iterator[_Stream]:
    here, there = _place(rank, steps), _place(again, steps)
    if here is None or there is None:
        return
    expected, made = one.by_rank[rank.rank], other.by_rank[rank.rank]
    found: set[str] = set()
    for a, b in _pairs(_after(expected, here, seeds), _after(made, there, seeds)):
        name = a.event.generator
        if a.event.before != b.event.before and name not in found:
            found.add(name)
            yield _Stream(
                rank.rank,
                name,
                a.event.before,
                b.event.before,
                [d for d in made if d.event.generator == b.event.generator and d.order < b.order],
                [d for d in expected if d.event.generator == name and d.order < a.order],
            )
    drawn = (*_after(expected, -1, seeds), *_after(made, there, seeds))
    for name in dict.fromkeys(draw.event.generator for draw in drawn):
        wanted, left = (_left(each, last, name) for each in (rank, again))
        if name not in found and wanted and left and wanted != left:
            yield _Stream(
                rank.rank,
                name,
                wanted,
                left,
                [draw for draw in made if draw.event.generator == name],
                [draw for draw in expected if draw.event.generator == name],
            )


def _pairs(expected: Sequence[Draw], made: Sequence[Draw]) -> Iterator[tuple[Draw, Draw]]:
    """The draws that both Runs make at the same places, in order.

    Draws are not paired by generator: a generator of the program is named after the line that
    first uses it, which may be another line in a resumed training.
    """
    again: dict[object, list[Draw]] = {}
    for draw in made:
        again.setdefault(_site(draw), []).append(draw)
    for draw in expected:
        there = again.get(_site(draw))
        if there:
            yield draw, there.pop(0)


def _site(draw: Draw) -> object:
    event = draw.event
    kind = event.generator.partition(" of ")[0]
    return kind, event.phase, event.step, event.microbatch, event.module, event.line, event.operator


def _difference(stream: _Stream, saved: Trace, steps: int) -> Difference:
    name, rank = stream.generator, stream.rank
    begin = f"{name} of rank {rank}"
    source, count = "", 0
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
    elif (owner := _other_rank(stream, saved, steps)) is not None:
        text = f"{begin} continues in the state of rank {owner}"
        cause = _OTHER_RANK
    else:
        text = (
            f"{begin} continues in a state that the uninterrupted training never had "
            f"({stream.found} and not {stream.wanted})"
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


def _other_rank(stream: _Stream, saved: Trace, steps: int) -> int | None:
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
        place = _place(rank, steps)
        draws = (draw for draw in Draws.of(saved).by_rank[rank.rank] if draw.order > (place or 0))
        if any(
            draw.event.generator == stream.generator and draw.event.before == stream.found
            for draw in draws
        ):
            return rank.rank
    return None


def _place(rank: RankTrace, steps: int) -> int | None:
    """The position of the event that records the training state after `steps` steps.

    Returns None if the rank recorded no such event.
    """
    for order, event in enumerate(rank.events):
        if isinstance(event, TrainingState) and event.steps == steps:
            return order
    return None


def _after(draws: Sequence[Draw], place: int, seeds: bool) -> list[Draw]:
    """The draws in training steps that a rank recorded after its event number `place`.

    Draws while models are initialised, and while checkpoints are saved or loaded, are excluded.  If
    `seeds` is False, seeds that torch's loaders draw are excluded as well.
    """
    return [
        draw
        for draw in draws
        if draw.order > place and _of_training(draw) and (seeds or not is_loader_seed(draw))
    ]


def _of_training(draw: Draw) -> bool:
    return draw.event.phase not in ("initialisation", "save", "load")


def _left(rank: RankTrace, last: int, generator: str) -> str:
    """The state of a generator after `last` steps; "" if it was not recorded."""
    state = state_after(rank, last)
    return "" if state is None else state.of("rng").get(generator, "")
