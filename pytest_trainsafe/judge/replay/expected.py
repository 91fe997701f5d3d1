"""Checks what a test expects with `expect_rng`: equal or different draws over an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judge.replay.draws import Draw, Draws, describe_draw, stream_of, when
from pytest_trainsafe.judge.replay.finding import violation
from pytest_trainsafe.trace.rng.expectation import Expectation

#: The phases whose draws are compared. A recomputation, for example, only repeats draws.
_ONCE = frozenset({"data", "forward", "backward", "optimizer"})


def expected(draws: Draws, expectations: Sequence[Expectation]) -> Iterator[Finding]:
    """Checks every expectation. Yields at most one finding for each of its axes."""
    for expectation in expectations:
        by_rank = [
            [d for d in rank if d.event.phase in _ONCE and expectation.concerns(d.place)]
            for rank in draws.by_rank
        ]
        for axis in expectation.same:
            yield from _same(draws, by_rank, axis, expectation.where)
        for axis in expectation.different:
            yield from _different(draws, by_rank, axis, expectation.where)


def unused(draws: Draws, expectations: Sequence[Expectation]) -> list[str]:
    """The patterns of expectations that no draw matches."""
    places = {draw.place for rank in draws.by_rank for draw in rank}
    return [e.where for e in expectations if not any(e.concerns(place) for place in places)]


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
                    f"first draw that rank {fewer} lacks is in {when(extra)}, "
                    f"{describe_draw(extra)}"
                )
                yield violation("rng:expected", message, "one rank skips a draw", extra, axis)
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
        f"{number} (counted from 0): in {when(left)}, {describe_draw(left)} draws from "
        f"{stream_of(left)} on rank {left.rank.rank} and from {stream_of(right)} on rank "
        f"{right.rank.rank}"
    )
    cause = f"the ranks of {axis} are seeded {'alike' if drew == 'the same' else 'differently'}"
    return violation("rng:expected", message, cause, left, axis)
