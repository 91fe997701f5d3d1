"""No generator is used by several threads at once."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judge.replay.draws import Draws, described, stream_of, when
from pytest_trainsafe.judge.replay.finding import broken
from pytest_trainsafe.judge.replay.parallel import Excused

#: What Python calls the thread that a process begins with.
_MAIN = "MainThread"


def shared_generator(draws: Draws, excused: Excused) -> Iterator[Finding]:
    """No thread draws from a generator that another thread uses meanwhile.

    Yields at most one finding: the first in time, of the first rank.
    """
    check = "rng:shared_generator"
    for rank in draws.by_rank:
        for draw in rank:
            event = draw.event
            if not event.shared or excused(check, draw):
                continue
            other = "the main thread" if event.shared == _MAIN else f"thread {event.shared!r}"
            message = (
                f"rank {draw.rank.rank} draws from one generator in thread {event.thread!r} and in "
                f"{other} at the same time: in {when(draw)}, {described(draw)} draws from "
                f"{stream_of(draw)}"
            )
            cause = (
                "which thread gets which numbers depends on their timing: give each thread or each "
                "example a generator of its own, as per_example_generator does"
            )
            yield broken(check, message, cause, draw)
            return
