"""Finds axes of a Point that a program reads but that had no effect on its Run.

Covers the axes ep, sp, vpp, recompute and compile.  The layouts of recorded tensors need not name
these axes, so layouts do not show whether such an axis had an effect.  Instead, a function for each
axis searches the Run for what the axis should cause.  For example, recompute should cause a
backward to run a part of the forward again.  Called by the guards
(`judges/compare/guards/vacuity.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_trainsafe.align.dataflow import in_dataflow
from pytest_trainsafe.core.layout import Partial, Placement, Shard, Slices, Striped, ZigZag, axes_of
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent


def why_without_effect(rung: RungTraces, axis: str) -> str | None:
    """Why an axis had no effect on the candidate; None if it had one, or if that is unknown."""
    judge = _JUDGES.get(axis)
    return judge(rung) if judge is not None else None


def _experts(rung: RungTraces) -> str | None:
    """The reason why ep had no effect; None if it had one, or if that is unknown.

    ep has no effect if every rank holds all parameters of its pipeline stage, and no parameter is
    sharded over dp or cp.
    """
    ranks = rung.candidate.ranks
    held = {rank.rank: _parameters_of(rank) for rank in ranks}
    if not any(held.values()):
        return None
    first = {rank.coordinates["pp"]: held[rank.rank] for rank in reversed(ranks)}
    if any(held[rank.rank] != first[rank.coordinates["pp"]] for rank in ranks):
        return None
    role = rung.candidate.sizes.mesh.role
    if any(_is_cut_over(event, ("dp", "cp"), role) for event in _events(rung.candidate, "param")):
        return None
    return "every rank holds every parameter of its stage, so no experts are distributed"


def _parameters_of(rank: RankTrace) -> frozenset[str]:
    return frozenset(f"{m.module}.{name}" for m in rank.modules.values() for name in m.parameters)


def _is_cut_over(event: TensorEvent, roles: tuple[str, ...], role: Callable[[str], str]) -> bool:
    return any(role(axis) in roles for placement in event.layout for axis in axes_of(placement))


def _sequence(rung: RungTraces) -> str | None:
    """The reason why sp had no effect; None if it had one, or if that is unknown.

    sp has no effect if no activation is sharded over tp along a dimension other than the last, and
    no parameter gradient is a partial sum over tp.
    """
    candidate, role = rung.candidate, rung.candidate.sizes.mesh.role
    activations = [*_events(candidate, "activation"), *_events(candidate, "activation_grad")]
    gradients = list(_events(candidate, "param_grad"))
    if not activations and not gradients:
        return None
    for event in activations:
        if any(dim < len(event.shape) - 1 for p in event.layout for dim in _dims_over_tp(p, role)):
            return None
    placements = [placement for event in gradients for placement in event.layout]
    if any(isinstance(p, Partial) and role(p.axis) == "tp" for p in placements):
        return None
    return (
        "no activation is split over tp along a dimension before its last, and no gradient of a "
        "parameter is a partial sum over tp"
    )


def _dims_over_tp(placement: Placement, role: Callable[[str], str]) -> Iterator[int]:
    """The dimensions that a placement shards over tp."""
    match placement:
        case Shard() | ZigZag() | Striped() if role(placement.axis) == "tp":
            yield placement.dim
        case Slices(_, shape, axes) if "tp" in map(role, axes):
            pairs = enumerate(zip(placement.lengths, shape, strict=True))
            yield from (dim for dim, (length, whole) in pairs if length < whole)


def _chunks(rung: RungTraces) -> str | None:
    """The reason why vpp had no effect; None if it had one, or if that is unknown.

    vpp has no effect if every rank computes only one contiguous part of the model.
    """
    order: list[str] = []
    for id in in_dataflow(rung.reference):
        if id.kind == "activation" and id.module not in order:
            order.append(id.module)
    called = [
        {id.module for id in rank.tensors if id.kind == "activation"}
        for rank in rung.candidate.ranks
    ]
    everywhere = set.intersection(*called)
    containers = {name.rpartition(".")[0] for name in order}
    leaves = [name for name in order if name not in containers and name not in everywhere]
    if not any(name in modules for modules in called for name in leaves):
        return None
    for modules in called:
        here = [name in modules for name in leaves]
        starts = sum(now and not before for before, now in zip([False, *here], here, strict=False))
        if starts > 1:
            return None
    return "every rank of pp computes one contiguous part of the model"


def _ran(axis: str, why: str) -> Callable[[RungTraces], str | None]:
    """Makes a function that returns `why`, or None if a rank recorded that `axis` took effect."""

    def judge(rung: RungTraces) -> str | None:
        return None if any(axis in rank.note("ran") for rank in rung.candidate.ranks) else why

    return judge


def _events(trace: Trace, kind: str) -> Iterator[TensorEvent]:
    for rank in trace.ranks:
        yield from (event for event in rank.tensors.values() if event.id.kind == kind)


_JUDGES: dict[str, Callable[[RungTraces], str | None]] = {
    "ep": _experts,
    "sp": _sequence,
    "vpp": _chunks,
    "recompute": _ran("recompute", "no backward recomputed a part of the forward"),
    "compile": _ran("compile", "torch.compile compiled nothing on any rank"),
}
