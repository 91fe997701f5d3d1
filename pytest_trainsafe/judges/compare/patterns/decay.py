"""Recognises an update that differs from the right one by a multiple of its parameter."""

from __future__ import annotations

from fractions import Fraction

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.scale import FRACTIONS
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor


def decayed(wrong: WrongTensor) -> Pattern | None:
    """Matches if an update minus the reference's is a multiple of the reference's parameter.

    The parameter has its value before the step, or after it if the decay follows the update.
    """
    added = wrong.difference
    if wrong.is_by_few(added):
        return None
    for parameter in wrong.parameters:
        if parameter.shape != added.shape or wrong.is_by_few(parameter):
            continue
        ratio = wrong.numbers.ratio(added, parameter)
        if not ratio:
            continue
        by = Fraction(ratio).limit_denominator(FRACTIONS) if wrong.numbers.exact else ratio
        if wrong.settles(wrong.norm(wrong.minus(added, wrong.numbers.scale(parameter, by)))):
            twice = "is applied twice or is too large" if ratio < 0 else "is left out or too small"
            times = f"by {ratio:.3g} times the parameter"
            return Pattern(
                "decay",
                f"the update differs from the reference's {times}",
                cause=f"weight decay {twice}",
                short=f"differs {times}, as by wrong weight decay",
            )
    return None
