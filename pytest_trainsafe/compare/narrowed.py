"""Finds gradients and states that pass, and whose values went through a narrower dtype.

In half precision a sum that is kept in bfloat16 instead of float32 errs no more than one kernel
does, so no tolerance tells it.  Its values do: all of them fit the narrower dtype, which a sum of
many terms in float32 does not.  Called by the compare judge for tensors that pass.
"""

from __future__ import annotations

import msgspec
import torch

from pytest_trainsafe.align.layout import Owned
from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.compare.pattern_narrow import narrower_dtypes
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.compare.tolerance import LOW_PRECISION
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorId

#: The kinds that recipes keep wide while parameters are narrow.
KINDS = frozenset({"main_grad", "optimizer_state"})

#: A value of 24 bits fits 8 of them by chance once in 65 536 times; so many do not.
LEAST = 4

#: Most tensors are told apart by their first values.
HEAD = 64


def narrowed(rung: Rung, id: TensorId, value: torch.Tensor, reference: torch.Tensor) -> str | None:
    """The narrower dtype that a passing tensor's values went through; None for none.

    Both sides must store it in a wider dtype, and the reference must use that.  Of a main gradient
    the candidate's own terms must need it too: the gradient of one backward is as narrow as the
    parameter, whatever it is stored in, and with ep one backward may do what the reference does in
    several.
    """
    if id.kind not in KINDS or rung.candidate.manifest.dtype not in LOW_PRECISION:
        return None
    holders = rung.candidate.holders(id)
    dtypes = {event.dtype for _, event in (*holders, *rung.reference.holders(id))}
    if len(dtypes) != 1:
        return None
    for dtype in narrower_dtypes(dtypes.pop()):
        if unfit(value.reshape(-1)[:HEAD], dtype) or unfit(value, dtype):
            continue
        if unfit(reference, dtype) < LEAST:
            continue
        if id.kind == "main_grad" and not _added_up(rung.candidate, id, dtype):
            continue
        return str(dtype).removeprefix("torch.")
    return None


def unfit(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """How many values a dtype cannot represent."""
    return int((tensor.to(dtype).to(tensor.dtype) != tensor).sum())


def _added_up(trace: Trace, id: TensorId, dtype: torch.dtype) -> bool:
    """Whether the sum of a gradient's terms, as this trace has them, does not fit a dtype."""
    if any(isinstance(p, Owned) for _, event in trace.holders(id) for p in event.layout):
        return False
    total: torch.Tensor | None = None
    for term in trace.ids():
        if msgspec.structs.replace(term, kind="main_grad", microbatch=None) != id:
            continue
        if term.kind != "param_grad":
            continue
        found = logical_tensor(trace, term).tensor
        if found is None:
            return False
        wide = found.to(torch.float64)
        total = wide if total is None else total + wide
    return total is not None and unfit(total, dtype) >= LEAST
