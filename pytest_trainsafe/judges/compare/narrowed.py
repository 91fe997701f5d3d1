"""Finds passing gradients, optimizer states and losses that were rounded to a narrower dtype.

A sum that is accumulated in bfloat16 instead of float32 has no larger error than a single bfloat16
kernel, so no tolerance detects it.  But its values show it: all of them are representable in the
narrower dtype, unlike those of a sum of many terms in float32.  Called by the compare judge for
tensors that pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import torch

from pytest_trainsafe.align.logical import logical_tensor, parts_of
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.layout import Owned
from pytest_trainsafe.core.rungs.table import DTYPES, rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace

#: The kinds that recipes keep in a wide dtype while parameters are in a narrow one.  After clipping
#: by a factor, values are no longer representable in the narrow dtype, so unclipped gradients are
#: included.
KINDS = frozenset({"unclipped_grad", "main_grad", "optimizer_state"})

#: The dtypes in which these kinds are kept.
WIDE = frozenset(name for name in DTYPES if not rung_named(name).low)

#: A float32 value is representable in bfloat16 by chance once in 65 536 times.  The reference must
#: have at least this many values that are not.
LEAST = 4

#: How many values are tested first; for most tensors they suffice.
HEAD = 64


def narrowed(
    rung: RungTraces, id: TensorId, value: torch.Tensor, reference: torch.Tensor
) -> str | None:
    """The candidate's dtype if a passing tensor's values were rounded to it; otherwise None.

    Only gradients, optimizer states and losses are tested, and only if the candidate's dtype is a
    low-precision dtype such as bfloat16.  A loss is a single number, so all losses are tested
    together, with the first one.  A gradient or an optimizer state is tested if both Runs store it
    in a wider dtype.  Its values count as rounded if two conditions hold.  First, the candidate's
    dtype can represent all of them exactly, but not all values of the reference.  Second, the sum
    of the gradients that the candidate's micro-batches contribute has values that this dtype cannot
    represent.  The second condition is false if only one micro-batch contributes: a sum of one term
    may be in the low precision of its parameter.  The candidate's own terms are added up, because
    the reference may have more of them: with ep, the candidate may run one backward where the
    reference runs several.  If both Runs lack the terms, because layers add to main gradients
    themselves, it suffices that the layer's backward runs in several micro-batches.
    Returns None if a framework is configured to reduce gradients in the candidate's dtype.
    """
    recipe = rung.candidate.manifest.dtype
    if id.kind not in {*KINDS, "loss"} or not rung_named(recipe).low:
        return None
    chosen = any(recipe in rank.note("reduces_in") for rank in rung.candidate.ranks)
    if chosen:
        return None
    if id.kind == "loss":
        rounded = unfit(reference, rung_named(recipe).dtype) and _losses_rounded(rung, id)
        return recipe if rounded else None
    holders = (*rung.candidate.holders(id), *rung.reference.holders(id))
    if {event.dtype for _, event in holders} - WIDE or value.is_complex():
        return None
    dtype = rung_named(recipe).dtype
    if unfit(value.reshape(-1)[:HEAD], dtype) or unfit(value, dtype):
        return None
    if unfit(reference, dtype) < LEAST or not _added_up(rung, id, dtype):
        return None
    return recipe


def unfit(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """The number of values that a dtype cannot represent."""
    return int((tensor.to(dtype).to(tensor.dtype) != tensor).sum())


def _losses_rounded(rung: RungTraces, first: TensorId) -> bool:
    """Whether the candidate's dtype represents all its losses, but not all of the reference's.

    False for all losses but the first.  Losses without recorded values are left out.
    """
    dtype = rung_named(rung.candidate.manifest.dtype).dtype
    if any(unfit(part, dtype) for part in _losses(rung.candidate, [first])):
        return False
    due, ours = (
        [id for id in trace.ids() if id.kind == "loss"]
        for trace in (rung.reference, rung.candidate)
    )
    if first != due[0] or any(unfit(part, dtype) for part in _losses(rung.candidate, ours)):
        return False
    return sum(unfit(part, dtype) for part in _losses(rung.reference, due)) >= LEAST


def _losses(trace: Trace, ids: Iterable[TensorId]) -> Iterator[torch.Tensor]:
    """Yields the losses as each rank recorded them; over cp, they are terms of a sum."""
    for id in ids:
        if is_whole(trace, id):
            yield from (part.tensor for part in parts_of(trace, id))


def _added_up(rung: RungTraces, id: TensorId, dtype: torch.dtype) -> bool:
    """Whether the sum of a gradient's terms in the candidate is not representable in a dtype.

    For an optimizer state, the gradient is that of its parameter.
    """
    trace = rung.candidate
    if any(isinstance(p, Owned) for _, event in trace.holders(id) for p in event.layout):
        return False
    leaf = id.name.split(".")[0] if id.kind == "optimizer_state" else id.name
    gradient = msgspec.structs.replace(id, kind="param_grad", name=leaf)
    terms = list(_terms(trace, gradient))
    if not terms and next(_terms(rung.reference, gradient), None) is None:
        return len({*_backwards(trace, id)}) > 1
    total: torch.Tensor | None = None
    for term in terms:
        found = logical_tensor(trace, term).whole
        if found is None:
            return False
        wide = found.to(torch.float64)
        total = wide if total is None else total + wide
    return total is not None and unfit(total, dtype) >= LEAST


def _terms(trace: Trace, gradient: TensorId) -> Iterator[TensorId]:
    """The ids of the micro-batches' gradients of a parameter in a step."""
    for id in trace.ids():
        if msgspec.structs.replace(id, microbatch=None) == gradient:
            yield id


def _backwards(trace: Trace, parameter: TensorId) -> Iterator[int | None]:
    """The micro-batches in which the backward of a parameter's module runs, in a step."""
    for id in trace.ids():
        if id.kind == "activation_grad" and (id.step, id.module) == (
            parameter.step,
            parameter.module,
        ):
            yield id.microbatch
