"""Recognises values that are wrongly zero: all of them, a region, or scattered elements."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.regions import name_region, region_of
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor


def zero(wrong: WrongTensor) -> Pattern | None:
    """Matches if all values are zero and the reference's are not."""
    none = wrong.numbers.is_zero
    if not bool(none(wrong.value).all()) or bool(none(wrong.reference).all()):
        return None
    if wrong.kind == "update":
        cause = "the parameter is not stepped: the optimizer does not hold it, or sees no gradient"
        return Pattern("zero", "the parameter did not move", cause=cause, short="did not move")
    cause = "no value reaches this tensor: it is detached, masked, or cleared before it is used"
    return Pattern("zero", "every value is zero", cause=cause, short="every value is zero")


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
