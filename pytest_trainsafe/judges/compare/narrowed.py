"""Finds passing tensors, such as gradients, that were rounded to a narrower dtype.

A sum that is accumulated in bfloat16 instead of float32 has no larger error than a single bfloat16
kernel, so no tolerance detects it.  But its values show it: all of them are representable in the
narrower dtype, unlike those of a sum of many terms in float32; or, after a reduction in float32,
they are those of sums that were rounded (`kinds/accumulated.py`).  Called by the compare judge for
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
from pytest_trainsafe.judges.compare.kinds.accumulated import adds_in
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace

#: The kinds that recipes keep in a wide dtype while parameters are in a narrow one.  After clipping
#: by a factor, values are no longer representable in the narrow dtype, so unclipped gradients are
#: included.
KINDS = frozenset({"unclipped_grad", "main_grad", "optimizer_state"})

#: The kinds of parameters' values, which change by updates that are smaller than they.
_VALUES = frozenset({"param", "master_param"})

#: The dtypes in which these kinds are kept.
WIDE = frozenset(name for name in DTYPES if not rung_named(name).low)

#: A float32 value is representable in bfloat16 by chance once in 65 536 times.  The reference must
#: have at least this many values that are not.
LEAST = 4

#: The same for single numbers, all of which are tested together.  A program reports one norm in a
#: step, so that a test of two steps has two.
_SINGLE = {"loss": LEAST, "grad_norm": 2}

#: How many values are tested first; for most tensors they suffice.
HEAD = 64


def narrowed(rung: RungTraces, id: TensorId, value: torch.Tensor, reference: torch.Tensor) -> str:
    """How a passing tensor's values were rounded to the candidate's dtype, as a clause; else "".

    Tested are gradients, parameters after a step, optimizer states, losses and gradient norms, if
    the candidate's dtype is a low-precision dtype such as bfloat16.  A loss or a norm is a single
    number, so all of them are tested together, with the first one.  Another tensor is tested if
    both Runs store it in a wider dtype.  Its values count as rounded if the candidate's dtype can
    represent all of them exactly, but not all values of the reference.  For a gradient or a state,
    a second condition is that the sum of the gradients that the candidate's micro-batches
    contribute has values that this dtype cannot represent: it is false if only one micro-batch
    contributes, since a sum of one term may be in the low precision of its parameter.  The
    candidate's own terms are added up, because the reference may have more of them: with ep, the
    candidate may run one backward where the reference runs several.  If both Runs lack the terms,
    because layers add to main gradients themselves, it suffices that the layer's backward runs in
    several micro-batches.
    A main gradient of the first step counts as rounded, too, if it is a sum that the ranks rounded,
    and any of these tensors that the candidate alone stores in a low-precision dtype.
    Returns "" if a framework is configured to reduce gradients in the candidate's dtype.
    """
    recipe = _recipe(rung)
    if id.kind not in {*KINDS, *_VALUES, *_SINGLE} or not rung_named(recipe).low:
        return ""
    if any(recipe in rank.note("reduces_in") for rank in rung.candidate.ranks):
        return ""
    dtype = rung_named(recipe).dtype
    if id.kind in _SINGLE:
        if not unfit(reference, dtype) or not _all_rounded(rung, id):
            return ""
        what = "loss" if id.kind == "loss" else "gradient norm"
        return (
            f"every {what} of the candidate is exact in {recipe}, and the reference's are not: the "
            f"{what} is computed in {recipe}"
        )
    ours, theirs = (
        {event.dtype: None for _, event in trace.holders(id)}
        for trace in (rung.candidate, rung.reference)
    )
    if id.kind not in _SINGLE and ours.keys() - WIDE and not theirs.keys() - WIDE:
        low = next(dtype for dtype in ours if dtype not in WIDE)
        return (
            f"the candidate stores the tensor as {low}, and the reference as {next(iter(theirs))}"
        )
    if (ours.keys() | theirs.keys()) - WIDE or value.is_complex():
        return ""
    stored = f"although the tensor is stored as {next(iter(ours))}"
    if unfit(value.reshape(-1)[:HEAD], dtype) or unfit(value, dtype):
        if not _adds_in(rung, id, dtype, tuple(reference.shape)):
            return ""
        return (
            f"the values are those of a sum that each rank rounds to {recipe} after adding the "
            f"gradient of each micro-batch, {stored}, and the reference's are not: the gradient is "
            f"accumulated in {recipe}"
        )
    if unfit(reference, dtype) < LEAST:
        return ""
    if id.kind not in _VALUES and not _added_up(rung, id, dtype):
        return ""
    return (
        f"every value is exact in {recipe}, {stored} and the reference's values are not all exact "
        f"in {recipe}: the tensor is accumulated, reduced or copied in {recipe}"
    )


def _adds_in(rung: RungTraces, id: TensorId, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Whether the candidate alone adds up a main gradient of the first step in a dtype."""
    first = min((step.step for step in rung.candidate.ranks[0].steps), default=None)
    if id.kind != "main_grad" or id.step != first:
        return False
    traces = (rung.candidate, rung.reference)
    if any(isinstance(p, Owned) for t in traces for _, e in t.holders(id) for p in e.layout):
        return False
    return adds_in(rung.candidate, id, dtype, shape) and not adds_in(
        rung.reference, id, dtype, shape
    )


def _recipe(rung: RungTraces) -> str:
    """The dtype whose rounding is allowed; of a program that casts to FP8, that of the Run."""
    return rung.dtype if rung_named(rung.dtype).host else rung.candidate.manifest.dtype


def unfit(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """The number of values that a dtype cannot represent."""
    return int((tensor.to(dtype).to(tensor.dtype) != tensor).sum())


def _all_rounded(rung: RungTraces, first: TensorId) -> bool:
    """Whether the candidate's dtype represents all its losses, but not all of the reference's.

    Or all its gradient norms.  False for all but the first.  Those without recorded values are left
    out.
    """
    dtype, kind = rung_named(_recipe(rung)).dtype, first.kind
    if any(unfit(part, dtype) for part in _parts(rung.candidate, [first])):
        return False
    due, ours = (
        [id for id in trace.ids() if id.kind == kind] for trace in (rung.reference, rung.candidate)
    )
    if first != due[0] or any(unfit(part, dtype) for part in _parts(rung.candidate, ours)):
        return False
    return sum(unfit(part, dtype) for part in _parts(rung.reference, due)) >= _SINGLE[kind]


def _parts(trace: Trace, ids: Iterable[TensorId]) -> Iterator[torch.Tensor]:
    """Yields tensors as each rank recorded them; losses over cp are terms of a sum."""
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
