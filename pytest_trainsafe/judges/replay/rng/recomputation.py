"""Checks that a recomputation draws the same numbers as its forward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws, describe_draw, stream_of, when
from pytest_trainsafe.judges.replay.rng.finding import violation
from pytest_trainsafe.judges.replay.rng.parallel import Excused
from pytest_trainsafe.trace.rng.events import MASKS


def recomputation(draws: Draws, excused: Excused) -> Iterator[Finding]:
    """Checks that every draw of a recomputation starts from a state that its forward drew from.

    Yields at most one finding: the first in time, of the first rank.
    """
    check = "rng:recomputation"
    for rank in draws.by_rank:
        forwards = _Forwards()
        for draw in rank:
            event = draw.event
            if event.phase == "forward" or (event.phase == "data" and event.microbatch is not None):
                forwards.add(draw)
                continue
            if event.phase != "recomputation" or excused(check, draw):
                continue
            originals = forwards.of(draw)
            if not originals or any(d.event.before == event.before for d in originals):
                continue
            if any(d.event.count > 1 for d in originals):
                continue  # the states between draws that are recorded as one are not known
            same = [d for d in originals if d.event.microbatch == event.microbatch] or originals
            message = (
                f"rank {draw.rank.rank} recomputes a forward with different random numbers: in "
                f"{when(draw)}, {describe_draw(draw)} draws from {stream_of(draw)}, and its "
                f"forward drew from state {same[0].event.before}"
            )
            yield violation(check, message, _cause(event.generator), draw)
            return


def _cause(generator: str) -> str:
    if generator.startswith("torch "):
        return (
            "activation checkpointing does not restore the random state of the forward: use "
            "preserve_rng_state=True, or save and restore the state of the framework's RNG tracker"
        )
    return (
        "torch's activation checkpointing restores only torch's default generators: draw from "
        "these, or save the state of this generator before the forward and restore it for the "
        "recomputation"
    )


class _Forwards:
    """The draws of a rank that a recomputation may repeat, by the place where they are made."""

    def __init__(self) -> None:
        self._places: defaultdict[tuple[object, ...], list[Draw]] = defaultdict(list)

    def add(self, draw: Draw) -> None:
        """Adds a draw of a forward, or of a function that the program calls in a micro-batch."""
        event = draw.event
        self._places[event.step, event.module, event.operator, event.line].append(draw)
        if event.phase == "forward" and event.operator in MASKS:
            self._places[event.step, event.module].append(draw)
            self._places[event.step,].append(draw)

    def of(self, draw: Draw) -> list[Draw]:
        """The draws of forwards among which the original of a recomputation's draw must be.

        Empty if it is not known that the draw repeats one. A mask repeats one of its module; if a
        forward is called directly, the ledger knows no module for its recomputation. Any other
        draw repeats one that the same line made in the same module: noise that code adds to
        gradients, for example, has no original.
        """
        event = draw.event
        line = event.step, event.module, event.operator, event.line
        places: list[tuple[object, ...]] = [line]
        if event.operator in MASKS:
            module = event.step, event.module
            places = [line, (event.step,)] if event.module is None else [module, (event.step,)]
        elif event.module is None:
            return []
        return next((self._places[place] for place in places if place in self._places), [])
