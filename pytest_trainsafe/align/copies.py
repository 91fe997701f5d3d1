"""Finds the initial parameters of which two ranks hold copies, by their layouts and shapes.

Called by judges that compare how the copies came about.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.core.layout import Scaled, axes_of
from pytest_trainsafe.core.mesh import Mesh, elsewhere
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

#: The roles whose ranks may hold copies of a parameter.
_ROLES = ("dp", "cp", "tp")


def neighbours(trace: Trace) -> Iterator[tuple[str, RankTrace, RankTrace]]:
    """Each mesh axis along which copies may lie, with two ranks that differ only along it.

    The first is the first rank of its group.  Each mesh axis counts on its own: a parameter may be
    sharded over one axis of a role and replicated over another.
    """
    for axis in trace.sizes.mesh.expand(_ROLES):
        first: dict[tuple[tuple[str, int], ...], RankTrace] = {}
        for rank in trace.ranks:
            one = first.setdefault(elsewhere(rank.coordinates, (axis,)), rank)
            if one is not rank:
                yield axis, one, rank


def copies(
    trace: Trace, reference: Trace | None, axis: str, left: RankTrace, right: RankTrace
) -> Iterator[TensorId]:
    """The initial parameters of which two ranks of `trace`, on `axis`, hold copies.

    Over tp, a parameter without an annotation may be sharded; it counts as copied only if it has
    the shape that it has in `reference`, a Run that holds it whole.
    """
    mesh = trace.sizes.mesh
    for id, event in left.tensors.items():
        if id.step != INITIAL:
            return
        other = right.tensors.get(id)
        if id.kind != "param" or other is None or event.shape != other.shape:
            continue
        known = mesh.role(axis) != "tp" or event.layout_source != "default"
        if (known or _is_whole(id, event, reference)) and axis not in cut_over(event, mesh):
            yield id


def cut_over(event: TensorEvent, mesh: Mesh) -> set[str]:
    """The mesh axes over which a rank holds a part or a term of a tensor."""
    found: set[str] = set()
    for placement in event.layout:
        found |= {placement.axis} if isinstance(placement, Scaled) else {*axes_of(placement)}
        found |= {*getattr(placement, "axes", ())}
    return {*mesh.expand(found)}


def _is_whole(id: TensorId, event: TensorEvent, reference: Trace | None) -> bool:
    holders = [] if reference is None else reference.holders(id)
    return bool(holders) and not holders[0][1].layout and holders[0][1].shape == event.shape
