"""Recognises values that were rounded to a narrower dtype."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.rungs.table import DTYPES, rung_named
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

#: Values of at most this many significant bits (0, 1, 0.5) are representable in every dtype.
PLAIN_BITS = 4


def narrower(wrong: WrongTensor) -> Pattern | None:
    """Matches if a narrower dtype can represent all values exactly, but not all of the reference's.

    The error must also be no larger than the error of a few roundings to this dtype.  Never matches
    values that are the reference's earlier ones: initial values fit narrow dtypes.  Of an update,
    the values are those of the parameter after the step.
    """
    value, reference, earlier, of = wrong.value, wrong.reference, [*wrong.earlier.values()], ""
    if wrong.updated is not None and len(wrong.parameters) == 2:
        before, reference = wrong.parameters
        value, earlier, of = wrong.updated, [before], " of the parameter after the step"
    if wrong.numbers.exact or value.is_complex() or value.shape != reference.shape or _plain(value):
        return None
    if any(torch.equal(value, each) for each in earlier):
        return None
    names = rung_named(wrong.dtype).narrower if wrong.dtype in DTYPES else ()
    for name in names:
        dtype = rung_named(name).dtype
        if _fits(reference, dtype) or not _fits(value, dtype):
            continue
        # The error of a sum of a few rounded terms is slightly larger than that of one rounding.
        if wrong.error > 2 * torch.finfo(dtype).eps * wrong.norm(reference):
            continue
        return Pattern(
            "narrower dtype",
            f"every value{of} fits {name} exactly, and the error is that of rounding to it",
            cause=f"the value is computed in {name}, or converted to {name} and back",
            short=f"rounded to {name}",
        )
    return None


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return bool((tensor.to(dtype).to(tensor.dtype) == tensor).all())


def _plain(tensor: torch.Tensor) -> bool:
    mantissa = torch.frexp(tensor).mantissa * 2**PLAIN_BITS
    return bool((mantissa == mantissa.round()).all())
