"""Checks that loader workers draw different numbers, and that threads share no generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.replay.rng.draws import (
    Draws,
    describe_draw,
    line_place,
    stream_of,
    when,
)
from pytest_trainsafe.judges.replay.rng.finding import violation
from pytest_trainsafe.judges.replay.rng.parallel import Excused
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import WorkerDraw
from pytest_trainsafe.trace.rng.ledger import ledger

#: Python's name for the main thread.
_MAIN = "MainThread"


def workers(trace: Trace, ignored: Callable[[str, str], bool]) -> Iterator[Finding]:
    """Checks that no two workers of a data loader begin by drawing the same numbers.

    Applies only to map-style datasets: the workers of an iterable dataset may all have to
    shuffle it in the same way before each takes its part. `ignored` says whether a test ignores a
    check at a place; the place of a loader is the line that made its iterator. Yields at most one
    finding.
    """
    check = "rng:workers"
    for rank in trace.ranks:
        first: dict[tuple[int, str], dict[int, WorkerDraw]] = {}
        for event in ledger(rank):
            if isinstance(event, WorkerDraw) and event.map_style:
                first.setdefault((event.loader, event.generator), {}).setdefault(
                    event.worker, event
                )
        for (_, generator), by_worker in first.items():
            seen: dict[tuple[str, str], WorkerDraw] = {}
            for event in by_worker.values():
                other = seen.setdefault((event.before, event.after), event)
                if other is event or ignored(check, line_place(event.at)):
                    continue
                line = f" made at {relative(event.at)}" if event.at else ""
                message = (
                    f"workers {other.worker} and {event.worker} of the data loader{line} on rank "
                    f"{rank.rank} draw the same numbers for different examples, first in their "
                    f"batch {event.fetch}: {generator} from state {event.before} to {event.after}"
                )
                cause = (
                    "every worker has a copy of one generator, or seeds it with the same number: "
                    "seed it in worker_init_fn with torch.initial_seed(), which differs by worker"
                )
                yield violation(check, message, cause)
                return


def shared_generator(draws: Draws, excused: Excused) -> Iterator[Finding]:
    """Checks that no thread draws from a generator while another thread uses it.

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
                f"{other} at the same time: in {when(draw)}, {describe_draw(draw)} draws from "
                f"{stream_of(draw)}"
            )
            cause = (
                "which thread gets which numbers depends on their timing: give each thread or each "
                "example a generator of its own, as per_example_generator does"
            )
            yield violation(check, message, cause, draw)
            return
