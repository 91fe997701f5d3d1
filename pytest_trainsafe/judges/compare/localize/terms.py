"""Says why the ranks' gradients of a parameter must be summed, and which parameters have marks.

Called by `judges.compare.localize.description` for gradients that a reduction leaves wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_trainsafe.core.layout import Owned, axes_of
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.localize.blame import Fault
from pytest_trainsafe.judges.compare.localize.gradients import unsummed
from pytest_trainsafe.trace.facts import Marked
from pytest_trainsafe.trace.reader import Trace

#: The most marks that are listed.
MOST_MARKS = 4

#: What the ranks of an axis divide, by its role.
_PARTS = {
    "dp": "its own samples",
    "cp": "its own part of the sequence",
    "tp": "its own part of the sequence, the features or the heads",
    "pp": "its own stage",
}

#: By what a parameter is whole on every rank, by the source of its layout.
_BY = {
    "default": "no declaration splits it",
    "attribute": "by the attributes that the program set on it",
    "dtensor": "by its DTensor placements",
}


def reasons(
    candidate: Trace, comparison: Comparison, group: Sequence[Fault]
) -> Iterator[tuple[str, str]]:
    """Rows of label and text on a group of faults in the reduction of gradients; none for others.

    `why` says why each rank needs the sum of the ranks' terms, if that is missing, and `marks`
    which parameters have the switches that the program set on some.
    """
    if group[0].phase not in ("weights", "reduction"):
        return
    targets = [fault.target for fault in group]
    axis = unsummed(comparison, targets, {"param_grad"}) or unsummed(comparison, targets)
    if axis and (text := _why(candidate, targets[0], axis)):
        yield "why", text
    if text := _marks(candidate, targets):
        yield "marks", text


def _why(candidate: Trace, path: str, axis: str) -> str:
    """Why the terms of a gradient must be summed over an axis; "" unless its ranks hold copies."""
    module, _, name = path.rpartition(".")
    holders = list(candidate.holders(TensorId(INITIAL, None, "param", module, name)))
    mesh = candidate.sizes.mesh
    along = mesh.expand((axis,))
    if len({tuple(rank.coordinates[each] for each in along) for rank, _ in holders}) < 2:
        return ""
    event = holders[0][1]
    cut = mesh.expand(each for placement in event.layout for each in axes_of(placement))
    if {*along} & {*cut}:
        return ""
    part = _PARTS.get(mesh.role(axis), "its own part of the work")
    by = _BY.get(event.layout_source, f"by {event.layout_source}")
    ranks = f"every rank of {axis} holds the whole of {path} ({by}), and its"
    if any(isinstance(placement, Owned) for placement in event.layout):
        ranks = f"several ranks of {axis} own {path}, and each one's"
        part = "what reaches that rank"
    return (
        f"{ranks} backward gives the term of {part}: each rank needs the sum of the terms over "
        f"{axis}, which is the gradient of the reference"
    )


def _marks(candidate: Trace, targets: Sequence[str]) -> str:
    """Which switches the program set on some parameters only, and whether `targets` have them."""
    found: dict[tuple[str, bool], set[str]] = {}
    every = {id.path for rank in candidate.ranks for id in rank.tensors if id.kind == "param"}
    for rank in candidate.ranks:
        for event in rank.events_of(Marked):
            found.setdefault((event.name, event.value), set()).update(event.parameters)
    wanted = {*targets}
    texts = []
    for (name, value), paths in found.items():
        if not paths < every or (paths & wanted and not wanted <= paths):
            continue
        here = "also on" if paths & wanted else "not on"
        example = "" if paths & wanted else f", such as {sorted(paths)[0]}"
        texts.append(
            f"{name} = {value} is set on {len(paths)} of {len(every)} parameters{example}, {here} "
            f"{targets[0]}"
        )
    return "; ".join(texts[:MOST_MARKS])
