"""Recognises wrong rows that all hold the same values, which the reference's rows do not."""

from __future__ import annotations

import numpy as np

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

#: Fewer wrong rows, or shorter ones, are equal by chance.
FEWEST_ROWS, FEWEST_COLUMNS = 3, 4

#: Kinds of tensors whose rows are tokens or samples.
_KINDS = frozenset({"input", "activation", "activation_grad"})


def same_row(wrong: WrongTensor) -> Pattern | None:
    """Matches if all wrong rows hold the values of one row, and the reference's rows there differ.

    A row is one index of all dimensions but the last.
    """
    shape = wrong.value.shape
    if wrong.kind not in _KINDS or len(shape) < 2 or shape[-1] < FEWEST_COLUMNS:
        return None
    value, reference, errors = (
        each.reshape(-1, shape[-1]) for each in (wrong.value, wrong.reference, wrong.difference)
    )
    sizes = (~wrong.numbers.is_zero(errors)).double() if wrong.numbers.exact else errors.abs()
    sizes = sizes.square().sum(dim=1).sqrt()
    limit = 0.0 if wrong.numbers.exact else 2 * wrong.allowed / max(len(sizes), 1) ** 0.5
    rows = (sizes > limit).nonzero().flatten()
    if not FEWEST_ROWS <= len(rows) < len(sizes):
        return None
    first = value[rows[:1]].expand(len(rows), -1)
    if not wrong.settles(wrong.norm(wrong.minus(value[rows], first))):
        return None
    due = reference[rows]
    if wrong.settles(wrong.norm(wrong.minus(due, due[:1].expand(len(rows), -1)))):
        return None  # the reference's rows are equal there too
    place = [int(at) for at in np.unravel_index(int(rows[0]), shape[:-1])]
    text = f"the {len(rows)} wrong rows of {len(sizes)} all hold the same values"
    return Pattern(
        "same row",
        f"{text}, as at index {place}; the reference's rows differ from each other",
        cause="an index is masked or clamped, so that one row is read for all of these",
        short=text,
    )
