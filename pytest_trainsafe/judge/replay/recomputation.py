"""Checks that a recomputation draws the same numbers as its forward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judge.replay.draws import Draw, Draws, describe_draw, stream_of, when
from pytest_trainsafe.judge.replay.finding import violation
from pytest_trainsafe.judge.replay.parallel import Excused
from pytest_trainsafe.trace.rng.events import MASKS


def recomputation(draws: Draws, excused: Excused) -> Iterator[Finding]:
    """Checks that every mask of a recomputation starts from a state that its forward drew from.

    Yields at most one finding: the first in time, of the first rank.
    """
    check = "rng:recomputation"
    for rank in draws.by_rank:
        forward: defaultdict[tuple[int, str | None], list[Draw]] = defaultdict(list)
        for draw in rank:
            event = draw.event
            if event.operator not in MASKS:
                continue
            if event.phase == "forward":
                forward[event.step, event.module].append(draw)
                continue
            if event.phase != "recomputation" or excused(check, draw):
                continue
            originals = forward.get((event.step, event.module))
            if originals is None:  # if `forward` is called directly, the ledger knows no module
                originals = [
                    d for (step, _), found in forward.items() for d in found if step == event.step
                ]
            if not originals or any(d.event.before == event.before for d in originals):
                continue
            same = [d for d in originals if d.event.microbatch == event.microbatch] or originals
            message = (
                f"rank {draw.rank.rank} recomputes a forward with different random numbers: in "
                f"{when(draw)}, {describe_draw(draw)} draws from {stream_of(draw)}, and its "
                f"forward drew from state {same[0].event.before}"
            )
            cause = (
                "activation checkpointing does not restore the random state of the forward: use "
                "preserve_rng_state=True, or save and restore the state of the framework's RNG "
                "tracker"
            )
            yield violation(check, message, cause, draw)
            return
