"""Recognises another mask: zeros at other positions than in the reference, all else correct.

If both sides keep the same number of values in every row, as a router's top-k does, the cause is
not a mask but another choice.
"""

from __future__ import annotations

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from pytest_trainsafe.judges.mask_advice import by_example


def other_mask(wrong: WrongTensor) -> Pattern | None:
    """Matches if some values are zero only in the candidate and others only in the reference.

    Most values must be non-zero on both sides, and correct: a tensor of mostly zeros would match
    any other.  If whole rows are masked differently, `confined` names the rows instead.
    """
    kept, due = ~wrong.numbers.is_zero(wrong.value), ~wrong.numbers.is_zero(wrong.reference)
    here, there, shared = ~kept & due, kept & ~due, kept & due
    if not (bool(here.any()) and bool(there.any()) and 2 * int(shared.sum()) >= int(due.sum())):
        return None
    other = here | there
    if wrong.value.ndim > 1 and not bool((other.any(-1) & shared.any(-1)).any()):
        return None
    if not wrong.settles(wrong.norm(wrong.difference.masked_fill(~shared, 0))):
        return None
    if few := _chosen(kept, due):
        return _other_choice(other, few)
    text = (
        f"{int(here.sum())} values are zero only in the candidate and {int(there.sum())} only in "
        "the reference; the others are right"
    )
    cause = (
        "the mask differs from the reference's. If it is dropout's, a single device draws other "
        f"masks than ranks do: {by_example()}"
    )
    return Pattern("other mask", text, cause=cause, short="zeros at other places")


def _chosen(kept: torch.Tensor, due: torch.Tensor) -> int:
    """The number of values that the masks `kept` and `due` keep in each row.

    0 if the number differs between rows or between the masks, or if all values are kept.
    """
    if due.ndim < 2 or not due.numel():
        return 0
    counts, few = due.sum(-1), int(due.reshape(-1, due.shape[-1])[0].sum())
    alike = bool((counts == few).all()) and torch.equal(counts, kept.sum(-1))
    return few if alike and few < due.shape[-1] else 0


def _other_choice(other: torch.Tensor, few: int) -> Pattern:
    rows = other.any(-1)
    text = (
        f"{int(rows.sum())} of {rows.numel()} rows have their non-zero values in other places than "
        f"the reference, though every row has {few} of them on both sides; all other values are "
        "right"
    )
    cause = (
        "a choice, such as a router's top-k, differs from the reference's. Rounding changes "
        "choices between nearly equal scores: annotate the module that chooses with `decision: "
        "topk` (or `decision: true` if it returns the chosen indices), so that its scores are "
        "judged"
    )
    short = f"other choices in {int(rows.sum())} of {rows.numel()} rows, as of a router's top-k"
    return Pattern("other choice", text, cause=cause, short=short)
