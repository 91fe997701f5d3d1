"""Finds gradients and states that pass, and whose values went through a narrower dtype.

In half precision a sum that is kept in bfloat16 instead of float32 errs no more than one kernel
does, so no tolerance tells it.  Its values do: all of them fit the narrower dtype, which a sum of
many terms in float32 does not.  Called by the compare judge for tensors that pass.
"""

from __future__ import annotations

import msgspec
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.layout import Owned
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judge.compare.rung import Rung
from pytest_trainsafe.judge.compare.tolerance.allowance import LOW_PRECISION
from pytest_trainsafe.trace.reader import Trace

#: The kinds that recipes keep wide while parameters are narrow.
#: Clipping multiplies by a factor that no narrow dtype holds, so gradients count from before it.
KINDS = frozenset({"unclipped_grad", "main_grad", "optimizer_state"})

#: The dtypes in which they are kept.
WIDE = frozenset({"float32", "float64"})

#: A value of 24 bits fits 8 of them by chance once in 65 536 times; so many do not.
LEAST = 4

#: Most tensors are told apart by their first values.
HEAD = 64


def narrowed(rung: Rung, id: TensorId, value: torch.Tensor, reference: torch.Tensor) -> str | None:
    """The dtype of the recipe, where a passing tensor's values went through it; None for none.

    Both sides must store the tensor in a wider dtype, and the reference must use that.  The
    candidate's own terms of the gradient must need it too: the gradient of one backward is as
    narrow as its parameter, whatever it is stored in, and with ep one backward may do what the
    reference does in several.
    """
    recipe = rung.candidate.manifest.dtype
    if id.kind not in KINDS or recipe not in LOW_PRECISION:
        return None
    holders = (*rung.candidate.holders(id), *rung.reference.holders(id))
    if {event.dtype for _, event in holders} - WIDE or value.is_complex():
        return None
    dtype: torch.dtype = getattr(torch, recipe)
    if unfit(value.reshape(-1)[:HEAD], dtype) or unfit(value, dtype):
        return None
    if unfit(reference, dtype) < LEAST or not _added_up(rung.candidate, id, dtype):
        return None
    chosen = any(recipe in rank.note("reduces_in") for rank in rung.candidate.ranks)
    return None if chosen else recipe


def unfit(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """How many values a dtype cannot represent."""
    return int((tensor.to(dtype).to(tensor.dtype) != tensor).sum())


def _added_up(trace: Trace, id: TensorId, dtype: torch.dtype) -> bool:
    """Whether the sum of a gradient's terms, as this trace has them, does not fit a dtype.

    Of a state of the optimizer, the gradient of its parameter.
    """
    if any(isinstance(p, Owned) for _, event in trace.holders(id) for p in event.layout):
        return False
    leaf = id.name.split(".")[0] if id.kind == "optimizer_state" else id.name
    gradient = msgspec.structs.replace(id, kind="param_grad", name=leaf)
    total: torch.Tensor | None = None
    for term in trace.ids():
        if msgspec.structs.replace(term, microbatch=None) != gradient:
            continue
        found = logical_tensor(trace, term).tensor
        if found is None:
            return False
        wide = found.to(torch.float64)
        total = wide if total is None else total + wide
    return total is not None and unfit(total, dtype) >= LEAST
