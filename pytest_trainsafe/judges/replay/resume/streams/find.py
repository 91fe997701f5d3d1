"""Finds the random streams from which the resumed Run draws other numbers, and why.

A stream differs for one of three reasons. It was not restored ("lost"), as `lost` describes;
the program seeds it during the training, and with another seed ("seeded", in `seeds`); or it was
restored, but then the resumed Run makes other draws ("drifted", in `drift`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.replay.resume.difference import Difference
from pytest_trainsafe.judges.replay.resume.state import place_of, state_after
from pytest_trainsafe.judges.replay.resume.streams.drift import drift_of
from pytest_trainsafe.judges.replay.resume.streams.lost import Stream, lost_difference
from pytest_trainsafe.judges.replay.resume.streams.seeds import are_seeded, seeded_difference
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws
from pytest_trainsafe.judges.replay.rng.evaluation import is_loader_seed
from pytest_trainsafe.trace.reader import RankTrace, Trace


@dataclass(frozen=True, slots=True)
class StreamDifference:
    """One generator that draws other numbers in the resumed Run, and the reason `how`.

    `step` is the step of the first draw that shows it, or the number of steps of the training if no
    draw does. `in_model` says whether a module of the model makes this draw, and `calls` whether
    the Runs make different calls there.
    """

    how: Literal["lost", "seeded", "drifted"]
    difference: Difference
    step: int
    in_model: bool = False
    calls: bool = False


def stream_differences(
    whole: Trace, saved: Trace, resumed: Trace, steps: int, last: int, *, seeds: bool
) -> list[StreamDifference]:
    """The streams that differ; one for each generator and reason, whatever ranks have it.

    `steps` is the number of steps before the checkpoint, and `last` that of the whole training.
    If `seeds` is False, the seeds that torch's loaders draw are ignored; such a seed
    influences only the data. A generator that draws differently in the two uninterrupted Runs,
    `whole` and `saved`, is not seeded, and is excluded.
    """
    first, one, other = Draws.of(whole), Draws.of(saved), Draws.of(resumed)
    found: dict[object, list[StreamDifference]] = {}
    for rank in saved.ranks:
        pairs = _pairs(*(_after(each.by_rank[rank.rank], -1, seeds) for each in (first, one)))
        unseeded = {b.event.generator for a, b in pairs if _unlike(a, b)}
        for stream in _apart(rank, resumed.ranks[rank.rank], one, other, steps, last, seeds):
            if stream.generator not in unseeded:
                made = _explained(stream, saved, resumed, steps, last)
                found.setdefault(_reason(made), []).append(made)
    return [_joined(each) for each in found.values()]


def _unlike(a: Draw, b: Draw) -> bool:
    """Whether a draw shows that a generator is in other states in the two uninterrupted Runs.

    A draw without an operator may be the program's seeding, which ends the difference.
    """
    if a.event.operator == b.event.operator == "":
        return a.event.after != b.event.after
    return a.event.before != b.event.before


def _reason(found: StreamDifference) -> object:
    """What is the same on all ranks whose streams differ for one reason.

    The states and seeds themselves differ between ranks that draw from streams of their own.
    """
    each = found.difference
    evidence = dict(each.evidence)
    seed, wanted = str(evidence.pop("seed", "")), str(evidence.pop("expected"))
    apart = int(wanted) - int(seed) if seed.isdigit() and wanted.isdigit() else 0
    evidence.pop("state", None)
    return found.how, found.step, each.cause, each.source, apart, tuple(evidence.items())


def _joined(found: Sequence[StreamDifference]) -> StreamDifference:
    """The first of the differences of several ranks; its message also names the other ranks."""
    first = found[0]
    if len(found) == 1:
        return first
    others = name_ranks([each.difference.rank for each in found[1:]])
    message = f"{first.difference.message}; {others} likewise"
    return replace(first, difference=replace(first.difference, message=message))


def _explained(
    stream: Stream, saved: Trace, resumed: Trace, steps: int, last: int
) -> StreamDifference:
    """The difference of a stream, with the reason for it."""
    one, other = saved.ranks[stream.rank], resumed.ranks[stream.rank]
    if stream.first is not None and are_seeded(*stream.first, one, other, steps):
        a, b = stream.first
        inside = b.event.module is not None
        return StreamDifference("seeded", seeded_difference(a, b), b.event.step, inside)
    drift = drift_of(stream, last) if stream.restored else None
    if drift is None:
        step = last if stream.first is None else stream.first[1].event.step
        return StreamDifference("lost", lost_difference(stream, saved, steps), step)
    return StreamDifference("drifted", drift.difference, drift.step, drift.in_model, drift.calls)


def _apart(
    rank: RankTrace,
    again: RankTrace,
    one: Draws,
    other: Draws,
    steps: int,
    last: int,
    seeds: bool,
) -> Iterator[Stream]:
    here, there = place_of(rank, steps), place_of(again, steps)
    if here is None or there is None:
        return
    expected, made = one.by_rank[rank.rank], other.by_rank[rank.rank]
    after, again_after = _after(expected, here, seeds), _after(made, there, seeds)
    begun = _begun(rank, again, steps)

    def stream(name: str, named: str, wanted: str, found: str, restored: bool) -> Stream:
        return Stream(
            rank.rank,
            name,
            wanted,
            found,
            [draw for draw in made if draw.event.generator == named],
            [draw for draw in expected if draw.event.generator == name],
            restored,
            [draw for draw in after if draw.event.generator == name],
            [draw for draw in again_after if draw.event.generator == named],
        )

    same: dict[str, bool] = {}
    found: set[str] = set()
    for a, b in _pairs(after, again_after):
        name, named = a.event.generator, b.event.generator
        equal = a.event.before == b.event.before
        same.setdefault(name, equal)
        if not equal and name not in found:
            found.add(name)
            restored = same[name]
            if name in begun:
                restored = begun[name] or _begin_alike(after, again_after, name)
            each = stream(name, named, a.event.before, b.event.before, restored)
            yield replace(
                each,
                made=[draw for draw in each.made if draw.order < b.order],
                expected=[draw for draw in each.expected if draw.order < a.order],
                first=(a, b),
            )
    drawn = (*_after(expected, -1, seeds), *again_after)
    for name in dict.fromkeys(draw.event.generator for draw in drawn):
        wanted, left = (_left(each, last, name) for each in (rank, again))
        if name in begun and name not in found and wanted and left and wanted != left:
            restored = begun[name] or _begin_alike(after, again_after, name)
            yield stream(name, name, wanted, left, restored)


def _begun(rank: RankTrace, again: RankTrace, steps: int) -> dict[str, bool]:
    """Whether each generator is in the same state in both Runs when the first resumed step begins.

    Only generators whose states both Runs recorded then.  Others may be created later: generators
    of NumPy that one line makes are named by an index, which may be another in the resumed Run.
    """
    was, now = state_after(rank, steps), state_after(again, steps)
    if was is None or now is None:
        return {}
    wanted, found = was.of("rng"), now.of("rng")
    return {name: wanted[name] == found[name] for name in wanted if name in found}


def _begin_alike(expected: Sequence[Draw], made: Sequence[Draw], generator: str) -> bool:
    """Whether the first draws from a generator find it in the same state: it was restored late."""
    pair = [
        next((draw.event.before for draw in draws if draw.event.generator == generator), "")
        for draws in (expected, made)
    ]
    return pair[0] != "" and pair[0] == pair[1]


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
