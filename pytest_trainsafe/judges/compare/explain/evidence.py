"""Collects the evidence on a wrong tensor from the traces of its rung.  Called by the judge.

Explaining loads more tensors than judging, so only the first tensors of a report are explained.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.merge import Merged, Part, merge
from pytest_trainsafe.align.updates import ends, update_parts
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.tensor_id import INITIAL, Kind, TensorId
from pytest_trainsafe.judges.compare.events import replacement, rewrite_key
from pytest_trainsafe.judges.compare.explain.part_ratio import allowed_of
from pytest_trainsafe.judges.compare.explain.uneven import unevenly_scaled
from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from pytest_trainsafe.judges.compare.patterns.partial_sum import names_axis
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.tensor import TensorJudgement, judge_tensor
from pytest_trainsafe.trace.facts import CollectiveEvent
from pytest_trainsafe.trace.reader import Trace

#: The pattern of replicas that are all correct.
ROUNDED_APART = Pattern(
    "rounded apart",
    "every replica agrees with the reference up to rounding",
    cause="the ranks compute this in different orders, and their replicas drift apart in training",
    short="replicas drift apart by rounding",
)


def explain_tensor(
    rung: RungTraces, id: TensorId, merged: Merged, reference: torch.Tensor, judged: TensorJudgement
) -> Pattern | None:
    """The pattern that relates a wrong tensor to its reference.

    Returns None if no pattern matches, or if the shapes differ.
    """
    assert merged.tensor is not None
    if merged.tensor.shape != reference.shape:
        return None
    parts = update_parts(rung.candidate, _recorded(id)) if id.kind == "update" else merged.parts
    return explain(_wrong(rung, id, merged.tensor, reference, parts, judged))


def explain_replicas(
    rung: RungTraces,
    id: TensorId,
    merged: Merged,
    reference: torch.Tensor,
    others: Sequence[torch.Tensor],
) -> Pattern | None:
    """The pattern that relates wrong replicas to the reference; None if no pattern matches.

    For tensors whose first replica is correct.  The text names the axis and the coordinate of the
    first group of ranks whose replica matches a pattern.  If every replica is correct, the pattern
    says so: they differ by rounding alone.
    """
    uneven = unevenly_scaled(rung, id)
    if uneven is not None:
        return uneven
    correct = wrong = False
    for axis, size in rung.candidate.sizes.items():
        if any(names_axis(part, axis) for part in merged.parts):
            continue
        for place in range(1, size):
            parts = [part for part in merged.parts if part.coordinates[axis] == place]
            if not parts:
                continue
            shape, sizes = tuple(reference.shape), rung.candidate.sizes
            value = merge(parts, sizes, shape=shape, numbers=rung.numbers).whole
            if value is None or value.shape != reference.shape:
                wrong = True
                continue
            arrays = [other.numpy() for other in others]
            judged = judge_tensor(value.numpy(), reference.numpy(), arrays, rung.dtype)
            if judged.passed:
                correct = True
                continue
            wrong = True
            found = explain(_wrong(rung, id, value, reference, merged.parts, judged))
            if found is not None:
                return msgspec.structs.replace(found, text=f"on {axis} rank {place}: {found.text}")
    return ROUNDED_APART if correct and not wrong else None


def _wrong(
    rung: RungTraces,
    id: TensorId,
    value: torch.Tensor,
    reference: torch.Tensor,
    parts: list[Part],
    judged: TensorJudgement,
) -> WrongTensor:
    holders = rung.reference.holders(_recorded(id))
    before = _before(id)
    earlier = {when: _finite(rung.reference, other) for when, other in before.items()}
    known = {when: tensor for when, tensor in earlier.items() if tensor is not None}
    return WrongTensor(
        value=_wide(value),
        reference=_wide(reference),
        parts=parts,
        sizes=rung.candidate.sizes,
        allowed=judged.rounding,
        kind=id.kind,
        dtype=holders[0][1].dtype if holders else rung.dtype,
        factors={"micro-batches": _microbatches(rung, id.step)},
        slices=judged.slices,
        earlier=known,
        earlier_allowed={w: allowed_of(rung, before[w], tensor) for w, tensor in known.items()},
        terms=_terms(rung, id),
        left=_left(rung, id),
        parameters=_parameters(rung, id),
        updated=_updated(rung, id),
        only=_only_axis(rung),
        computed=_computed(rung, id),
        summed=_summed(rung, id),
        again=_summed_again(rung, id),
        numbers=rung.numbers,
    )


def _only_axis(rung: RungTraces) -> str:
    """The mesh axis that alone distinguishes the candidate from the reference; "" if none does.

    Then whatever is wrong comes from this axis: without it the candidate is the reference.
    """
    candidate, reference = rung.candidate.manifest, rung.reference.manifest
    if (candidate.program, candidate.spec.arguments) != (
        reference.program,
        reference.spec.arguments,
    ):
        return ""
    ours, theirs = rung.candidate.point.without("dtype"), rung.reference.point.without("dtype")
    sizes, others = rung.candidate.sizes, rung.reference.sizes
    over = [axis for axis, size in sizes.items() if size != others.get(axis, 1)]
    # Axes such as sp, which is no number of ranks, distinguish the two as well.
    more = {*ours.values} - {*theirs.values}
    return over[0] if len(over) == 1 and {axis for axis, _ in more} == {*over} else ""


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_complex() else tensor.to(torch.float64)


def _recorded(id: TensorId) -> TensorId:
    return msgspec.structs.replace(id, kind="param") if id.kind == "update" else id


def _microbatches(rung: RungTraces, step: int) -> int:
    """The number of micro-batches of a step, over all dp ranks."""
    done = {
        rank.coordinates["dp"]: event.microbatches
        for rank in rung.candidate.ranks
        for event in rank.steps
        if event.step == step
    }
    return sum(done.values()) or 1


def _before(id: TensorId) -> dict[str, TensorId]:
    """The tensor in the previous step and in the previous micro-batch, by description."""
    before = {}
    if id.step > INITIAL and id.kind != "update":
        before["of the previous step"] = msgspec.structs.replace(id, step=id.step - 1)
    if id.microbatch:
        earlier = msgspec.structs.replace(id, microbatch=id.microbatch - 1)
        before[f"of the previous micro-batch, {earlier.microbatch}"] = earlier
    return before


def _left(rung: RungTraces, id: TensorId) -> tuple[torch.Tensor, ...]:
    """The reference's gradients of the previous step if `id` is a gradient: clipped and not.

    In Runs that localise, the optimizer got a generated one, which is what is left then.
    """
    if id.kind not in ("main_grad", "unclipped_grad") or id.step <= INITIAL + 1:
        return ()
    before = msgspec.structs.replace(id, step=id.step - 1)
    kinds: tuple[Kind, ...] = ("main_grad", "unclipped_grad")
    values = [_finite(rung.reference, msgspec.structs.replace(before, kind=kind)) for kind in kinds]
    spec = rung.candidate.manifest.spec
    given = msgspec.structs.replace(before, kind="main_grad")
    rewrite = dict(spec.rewrite).get(rewrite_key(given))
    if rewrite is not None and values[0] is not None:
        values.append(replacement(given, rewrite, spec.seed, values[0]))
    return tuple(tensor for tensor in values if tensor is not None)


def _parameters(rung: RungTraces, id: TensorId) -> tuple[torch.Tensor, ...]:
    """The reference's parameter before and after the step if `id` is its update."""
    both = ends(rung.reference, _recorded(id)) if id.kind == "update" else None
    values = (_finite(rung.reference, each) for each in both or ())
    return tuple(tensor for tensor in values if tensor is not None)


def _updated(rung: RungTraces, id: TensorId) -> torch.Tensor | None:
    """The candidate's parameter after the step if `id` is its update."""
    both = ends(rung.candidate, _recorded(id)) if id.kind == "update" else None
    return _finite(rung.candidate, both[1]) if both else None


def _terms(rung: RungTraces, id: TensorId) -> dict[int, torch.Tensor]:
    """The reference's gradient of each micro-batch if `id` is their sum; {} if one is missing."""
    if id.kind not in ("main_grad", "unclipped_grad"):
        return {}
    found = {}
    for index in range(_microbatches(rung, id.step)):
        term = msgspec.structs.replace(id, kind="param_grad", microbatch=index)
        tensor = _finite(rung.reference, term)
        if tensor is None:
            return {}
        found[index] = tensor
    return found


def _computed(rung: RungTraces, id: TensorId) -> dict[int, frozenset[int]]:
    """By rank, the micro-batches whose tensors it recorded in the step of `id`, a gradient."""
    if id.kind not in ("main_grad", "unclipped_grad"):
        return {}
    return {
        rank.rank: frozenset(
            other.microbatch
            for other in rank.tensors
            if other.step == id.step and other.microbatch is not None
        )
        for rank in rung.candidate.ranks
    }


def _summed(rung: RungTraces, id: TensorId) -> frozenset[str]:
    """The axes over which collectives sum or average a gradient that they were given by its name.

    The gradient is that of a step, after all reductions; for any other tensor there are none.
    """
    if id.kind not in ("main_grad", "unclipped_grad"):
        return frozenset()
    found: set[str] = set()
    for rank in rung.candidate.ranks:
        for call in rank.events_of(CollectiveEvent):
            if call.name == f"{id.path}.grad" and call.reduce in ("SUM", "AVG"):
                found.update(rung.candidate.point.axes_between(call.ranks))
    return frozenset(found)


def _summed_again(rung: RungTraces, id: TensorId) -> dict[str, tuple[str, ...]]:
    """The lines of all_reduce calls that sum a gradient over an axis several times in a step.

    They are the calls of one rank that were given the gradient by its name.
    """
    if id.kind not in ("main_grad", "unclipped_grad"):
        return {}
    for rank in rung.candidate.ranks:
        lines: dict[str, list[str]] = {}
        for call in rank.events_of(CollectiveEvent):
            sums = call.op == "all_reduce" and call.reduce == "SUM"
            if sums and call.step == id.step and call.name == f"{id.path}.grad":
                axes = rung.candidate.point.axes_between(call.ranks)
                if len(axes) == 1 and len(call.ranks) == rung.candidate.sizes[axes[0]]:
                    lines.setdefault(axes[0], []).append(call.site)
        if lines:
            return {axis: tuple(each) for axis, each in lines.items() if len(each) > 1}
    return {}


def _finite(trace: Trace, id: TensorId) -> torch.Tensor | None:
    """The logical tensor; None if it is not recorded, not whole or not finite."""
    if not trace.holders(id):
        return None
    tensor = logical_tensor(trace, id).whole
    return _wide(tensor) if tensor is not None and bool(torch.isfinite(tensor).all()) else None
