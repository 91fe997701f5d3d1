"""Recognises values that are wrongly zero: all of them, a region, or scattered elements."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.rungs.table import DTYPES, rung_named
from pytest_trainsafe.judges.compare.patterns.regions import name_region, region_of
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

#: Programs scale losses by powers of two down to this; what is smaller is no scale.
LEAST_SCALE = 2.0**-26

_CUT_OFF = "no value reaches this tensor: it is detached, masked, or cleared before it is used"


def zero(wrong: WrongTensor) -> Pattern | None:
    """Matches if all values are zero, or nothing but rounding, and the reference's are not."""
    none = wrong.numbers.is_zero
    if bool(none(wrong.reference).all()):
        return None
    if not bool(none(wrong.value).all()):
        return _rounded_to_nothing(wrong)
    if wrong.kind == "update":
        cause = "the parameter is not stepped: the optimizer does not hold it, or sees no gradient"
        return Pattern("zero", "the parameter did not move", cause=cause, short="did not move")
    return Pattern("zero", "every value is zero", cause=_CUT_OFF, short="every value is zero")


def _rounded_to_nothing(wrong: WrongTensor) -> Pattern | None:
    """The pattern of values of which terms that cancel leave nothing but their rounding."""
    if wrong.numbers.exact or wrong.kind == "update" or wrong.dtype not in DTYPES:
        return None
    least = min(rung_named(wrong.dtype).epsilon, LEAST_SCALE)
    if wrong.norm(wrong.value) >= least * wrong.norm(wrong.reference):
        return None
    text = "every value is zero up to rounding"
    return Pattern("zero", text, cause=_CUT_OFF, short=text)


def zero_in_part(wrong: WrongTensor) -> Pattern | None:
    """Matches if some values are wrongly zero and all others are correct.

    A buffer may count or hold signs, so that zero is a value like others.
    """
    if wrong.kind == "buffer":
        return None
    cleared = wrong.numbers.is_zero(wrong.value) & ~wrong.numbers.is_zero(wrong.reference)
    if not bool(cleared.any()):
        return None
    if not wrong.settles(wrong.norm(wrong.difference.masked_fill(cleared, 0))):
        return None
    region = region_of(cleared)
    words, axis = name_region(region, wrong)
    if words and not bool(_within(wrong.value, region).any()):
        text, short = f"zero in {words}, and right elsewhere", f"zero in {words}"
        cause = "no value reaches this part: it is masked, not gathered or not copied"
    elif wrong.kind == "update":
        return None  # of a step by signs, or below what the parameter's dtype holds
    else:
        count = int(cleared.sum())
        short = f"{count} of {cleared.numel()} values are zero"
        text = f"{short}, and the others are right"
        axis, cause = "", "more is masked or dropped here than in the reference"
    return Pattern("zero in part", text, axis, cause, short=short)


def _within(tensor: torch.Tensor, region: list[torch.Tensor]) -> torch.Tensor:
    for dim, mask in enumerate(region):
        tensor = tensor.index_select(dim, mask.nonzero().flatten())
    return tensor
