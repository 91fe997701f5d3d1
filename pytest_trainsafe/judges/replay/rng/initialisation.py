"""Checks that replicas of a parameter that is initialised at random start with equal values."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import Scaled, axes_of
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws, describe_draw, stream_of
from pytest_trainsafe.judges.replay.rng.finding import violation
from pytest_trainsafe.judges.replay.rng.parallel import Excused
from pytest_trainsafe.trace.reader import RankTrace
from pytest_trainsafe.trace.schema import TensorEvent

#: The roles whose ranks may hold replicas of a parameter.
_ROLES = ("dp", "cp", "tp")


def initialisation(draws: Draws, excused: Excused) -> Iterator[Finding]:
    """Checks that no replicas start differently because their ranks drew from different streams.

    Replicas that differ for another reason are left to the comparison. Yields at most one
    finding.
    """
    check = "rng:initialisation"
    trace = draws.trace
    mesh = trace.sizes.mesh
    # Each mesh axis on its own: a parameter may be sharded over one axis of a role and replicated
    # over another.
    for axis in mesh.expand(_ROLES):
        for group in draws.groups(axis):
            first, *others = (trace.ranks[rank] for rank in group)
            for other in others:
                id = _differing(first, other, axis, mesh)
                pair = _first_apart(draws, first.rank, other.rank)
                if id is None or pair is None or excused(check, pair[0]):
                    continue
                left, right = pair
                message = (
                    f"{name_ranks([first.rank, other.rank])} of {axis} begin with different copies "
                    f"of {id.path} and drew their parameters from different random streams, first "
                    f"for {describe_draw(left)}: rank {first.rank} from {stream_of(left)}, rank "
                    f"{other.rank} from {stream_of(right)}"
                )
                cause = (
                    f"the ranks of {axis} were seeded differently before the model was made: seed "
                    "them alike for the parameters they share, or broadcast these from one rank"
                )
                yield violation(check, message, cause, left, axis)
                return


def _differing(left: RankTrace, right: RankTrace, axis: str, mesh: Mesh) -> TensorId | None:
    for id, event in left.tensors.items():
        if id.step != INITIAL:
            return None
        other = right.tensors.get(id)
        if id.kind != "param" or other is None or event.shape != other.shape:
            continue
        # Over tp, a parameter without an annotation may be sharded.
        known = mesh.role(axis) != "tp" or event.layout_source != "default"
        if known and event.hash != other.hash and axis not in _cut_over(event, mesh):
            return id
    return None


def _cut_over(event: TensorEvent, mesh: Mesh) -> set[str]:
    found: set[str] = set()
    for placement in event.layout:
        found |= {placement.axis} if isinstance(placement, Scaled) else {*axes_of(placement)}
        found |= {*getattr(placement, "axes", ())}
    return {*mesh.expand(found)}


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
