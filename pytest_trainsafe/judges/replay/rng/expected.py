"""Checks what a test expects with `expect_rng`: equal or different draws over an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.usage import listing, name_ranks
from pytest_trainsafe.judges.replay.rng.draws import (
    Draw,
    Draws,
    describe_draw,
    line_place,
    stream_of,
    when,
)
from pytest_trainsafe.judges.replay.rng.finding import violation
from pytest_trainsafe.sweep.expectation import Expectation
from pytest_trainsafe.trace.rng.events import SWITCHED_OFF, WorkerDraw
from pytest_trainsafe.trace.rng.ledger import ledger

_CHECK = "rng:expected"

#: The phases outside of steps, in words. A draw there has the number of the next step.
_BETWEEN = {"evaluation": "an evaluation", "save": "a save", "load": "a load"}

#: How many places a message lists at most.
_LISTED = 8


def expected(draws: Draws, expectations: Sequence[Expectation]) -> Iterator[Finding]:
    """Checks every expectation. Yields at most one finding for each of its axes.

    Yields an inconclusive finding for an expectation that applies at the Point and compares
    nothing.
    """
    for expectation in expectations:
        by_rank = _compared(draws, expectation)
        for axis in expectation.same:
            yield from _same(draws, by_rank, axis, expectation.where)
        for axis in expectation.different:
            yield from _different(draws, by_rank, axis, expectation.where)
        yield from _without_draws(draws, by_rank, expectation)


def _compared(draws: Draws, expectation: Expectation) -> list[list[Draw]]:
    """The draws to which an expectation applies, by rank.

    A recomputation only repeats the draws of its forward. Draws of the initialisation are included
    only if no others match: initial values may have to be equal where later draws have to differ,
    and a pattern such as "train.py:*" matches both.
    """
    matching = [
        [d for d in rank if d.event.phase != "recomputation" and expectation.concerns(d.place)]
        for rank in draws.by_rank
    ]
    later = [[d for d in rank if d.event.phase != "initialisation"] for rank in matching]
    return later if any(later) else matching


def unused(draws: Draws, expectations: Sequence[Expectation]) -> list[str]:
    """Notes on expectations that have no effect at the Point, although nothing is wrong with it.

    These are expectations over axes of size 1, and checks that are ignored where nothing draws.
    """
    places = {draw.place for rank in draws.by_rank for draw in rank} | {
        line_place(event.at)
        for rank in draws.trace.ranks
        for event in ledger(rank)
        if isinstance(event, WorkerDraw)
    }
    notes = []
    for expectation in expectations:
        axes = (*expectation.same, *expectation.different)
        if axes and not _applicable(draws, axes):
            along = "it" if len(axes) == 1 else "each"
            notes.append(
                f"expect_rng({expectation.where!r}) over {listing(axes)}, because there is only "
                f"one rank along {along}"
            )
        elif not axes and not any(map(expectation.concerns, places)):
            notes.append(f"no draw matches expect_rng({expectation.where!r})")
    return notes


def _applicable(draws: Draws, axes: Sequence[str]) -> list[str]:
    return [axis for axis in axes if draws.trace.sizes[axis] > 1]


def _without_draws(
    draws: Draws, by_rank: list[list[Draw]], expectation: Expectation
) -> Iterator[Finding]:
    """An inconclusive finding if some axis of an expectation has no draws to compare."""
    if any(SWITCHED_OFF in ledger(rank) for rank in draws.trace.ranks):
        return  # rng:unseen is inconclusive
    # A rank that draws less than another breaks `same`; `different` needs draws of two ranks.
    least = dict.fromkeys(expectation.same, 1) | dict.fromkeys(expectation.different, 2)
    empty = [
        axis
        for axis in _applicable(draws, [*least])
        if not any(
            sum(bool(by_rank[rank]) for rank in group) >= least[axis]
            for group in draws.groups(axis)
        )
    ]
    if not empty:
        return
    every = [draw for rank in draws.by_rank for draw in rank]
    if any(by_rank):
        what = "no two ranks along it make draws that match"
    elif any(expectation.concerns(draw.place) for draw in every):
        what = "the draws that match are all made in recomputations, which only repeat draws"
    else:
        places = list(dict.fromkeys(draw.place for draw in every if draw.place))
        more = f", and {len(places) - _LISTED} more" if len(places) > _LISTED else ""
        drew = f"draws are made in {listing(places[:_LISTED])}{more}" if places else "none is seen"
        what = f"no draw matches; {drew}"
    message = (
        f"expect_rng({expectation.where!r}) compares nothing over {listing(empty)}, because {what}"
    )
    yield Finding(verdict="inconclusive", judge="replay", check=_CHECK, message=message)


def _same(draws: Draws, by_rank: list[list[Draw]], axis: str, where: str) -> Iterator[Finding]:
    for group in draws.groups(axis):
        first = by_rank[group[0]]
        for rank in group[1:]:
            for number, (left, right) in enumerate(zip(first, by_rank[rank], strict=False)):
                if left.event.before != right.event.before:
                    yield _finding(axis, where, left, right, number, "different")
                    return
            if len(first) != len(by_rank[rank]):
                more, fewer = sorted((group[0], rank), key=lambda r: -len(by_rank[r]))
                extra = by_rank[more][len(by_rank[fewer])]
                message = (
                    f"expected the same draws over {axis} at {where!r}, but rank {more} draws "
                    f"{len(by_rank[more])} times and rank {fewer} {len(by_rank[fewer])} times; the "
                    f"first draw that rank {fewer} lacks is in {_when(extra)}, "
                    f"{describe_draw(extra)}"
                )
                yield violation(_CHECK, message, "one rank skips a draw", extra, axis)
                return


def _different(draws: Draws, by_rank: list[list[Draw]], axis: str, where: str) -> Iterator[Finding]:
    for group in draws.groups(axis):
        seen: dict[tuple[str, str], tuple[int, int, Draw]] = {}
        for rank in group:
            for number, draw in enumerate(by_rank[rank]):
                key = draw.event.generator, draw.event.before
                other, _, left = seen.setdefault(key, (rank, number, draw))
                if other != rank:
                    yield _finding(axis, where, left, draw, number, "the same")
                    return


def _finding(axis: str, where: str, left: Draw, right: Draw, number: int, drew: str) -> Finding:
    wanted = "different" if drew == "the same" else "the same"
    message = (
        f"expected {wanted} draws over {axis} at {where!r}, but "
        f"{name_ranks([left.rank.rank, right.rank.rank])} draw {drew} numbers, first at draw "
        f"{number} (counted from 0): in {_when(left)}, {describe_draw(left)} draws from "
        f"{stream_of(left)} on rank {left.rank.rank} and from {stream_of(right)} on rank "
        f"{right.rank.rank}"
    )
    cause = f"the ranks of {axis} are seeded {'alike' if drew == 'the same' else 'differently'}"
    return violation(_CHECK, message, cause, left, axis, other=right)


def _when(draw: Draw) -> str:
    """The step and the micro-batch of a draw, or the phase if it is made outside of steps."""
    phase = draw.event.phase
    if phase == "initialisation":
        return "the initialisation"
    if phase in _BETWEEN:
        return f"{_BETWEEN[phase]} before step {draw.event.step}"
    return when(draw)
