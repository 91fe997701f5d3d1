"""Checks that replicas of a parameter that is initialised at random start with equal values."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.align.copies import copies, neighbours
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws, describe_draw, stream_of
from pytest_trainsafe.judges.replay.rng.finding import violation
from pytest_trainsafe.judges.replay.rng.parallel import Excused
from pytest_trainsafe.trace.reader import Trace


def initialisation(draws: Draws, reference: Trace | None, excused: Excused) -> Iterator[Finding]:
    """Checks that no replicas start differently because their ranks drew from different streams.

    Replicas that differ for another reason are left to the comparison. Yields at most one
    finding. `reference`, a Run that holds every parameter whole, shows which tp ranks hold too.
    """
    check = "rng:initialisation"
    for axis, one, other in neighbours(draws.trace):
        shared = copies(draws.trace, reference, axis, one, other)
        id = next((i for i in shared if one.tensors[i].hash != other.tensors[i].hash), None)
        pair = _first_apart(draws, one.rank, other.rank)
        if id is None or pair is None or excused(check, pair[0]):
            continue
        left, right = pair
        message = (
            f"{name_ranks([one.rank, other.rank])} of {axis} begin with different copies "
            f"of {id.path} and drew their parameters from different random streams, first "
            f"for {describe_draw(left)}: rank {one.rank} from {stream_of(left)}, rank "
            f"{other.rank} from {stream_of(right)}"
        )
        cause = (
            f"the ranks of {axis} were seeded differently before the model was made: seed "
            "them alike for the parameters they share, or broadcast these from one rank"
        )
        yield violation(check, message, cause, left, axis, other=right)
        return


def _first_apart(draws: Draws, left: int, right: int) -> tuple[Draw, Draw] | None:
    """The first draw of the initialisation that two ranks made from different states."""
    here, there = (
        [draw for draw in draws.by_rank[rank] if draw.event.phase == "initialisation"]
        for rank in (left, right)
    )
    for one, other in zip(here, there, strict=False):
        if one.event.before != other.event.before:
            return one, other
    return None
