"""Recognises values of the previous step or micro-batch, alone or added to the right ones."""

from __future__ import annotations

import math

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

_CAUSE = (
    "what the previous step left in gradients, or in a buffer of them, is not set to zero before "
    "the backwards of this step"
)

#: How many elements two fitted weights need, and the least weight that counts.
LEAST = 16
LEAST_SHARE = 0.01
#: The largest condition number of a fit.
_CONDITION = 1e6


def stale(wrong: WrongTensor) -> Pattern | None:
    """Matches if the value equals an earlier value of the reference.

    Never matches if only a few elements differ, because they may be equal by chance.
    """
    if wrong.is_by_few(wrong.difference):
        return None
    for when, earlier in wrong.earlier.items():
        if earlier.shape != wrong.value.shape:
            continue
        if wrong.explains(wrong.value, earlier, wrong.earlier_allowed.get(when)):
            return Pattern(
                "stale",
                f"the value equals the reference's value {when}",
                cause="a buffer, a copy or an input is not updated in time",
                short=f"stale, the value {when}",
            )
    return None


def uncleared(wrong: WrongTensor) -> Pattern | None:
    """Matches if a gradient of the previous step is added to the correct gradient.

    A reduction that sums over ranks multiplies what was left on each of them, so the gradient of
    the previous step may be added several times, by the size of an axis or a product of sizes.
    """
    added = wrong.difference
    if wrong.is_by_few(added):
        return None
    for left in wrong.left:
        ratio = wrong.numbers.ratio(added, left)
        times = round(ratio) if ratio is not None else 0
        if not 1 <= times <= math.prod(wrong.sizes.values()):
            continue
        if wrong.settles(wrong.norm(wrong.minus(added, wrong.numbers.scale(left, times)))):
            often = "" if times == 1 else f"{times} times "
            return Pattern(
                "uncleared",
                f"the value is the reference plus {often}the gradient of the previous step",
                cause=_CAUSE,
                short="the gradient of the previous step is added to it",
            )
    return _uncleared_and_scaled(wrong)


def _uncleared_and_scaled(wrong: WrongTensor) -> Pattern | None:
    """Matches a multiple of the correct gradient plus a multiple of that of the previous step.

    Clipping scales both, by a norm that the previous step makes wrong too.  A sum that nothing
    scales has the whole of the previous gradient, and is none of these.
    """
    if wrong.numbers.exact or wrong.value.is_complex() or wrong.value.numel() < LEAST:
        return None
    for left in wrong.left:
        both = torch.stack([wrong.reference.reshape(-1), left.reshape(-1)], dim=1)
        gram = both.T @ both
        if not float(torch.linalg.cond(gram)) <= _CONDITION:
            continue  # the steps' gradients are too alike to be told apart, or one is zero
        of_reference, of_left = torch.linalg.solve(gram, both.T @ wrong.value.reshape(-1)).tolist()
        if min(of_reference, of_left, abs(of_reference - 1)) < LEAST_SHARE:
            continue
        if wrong.explains(of_reference * wrong.reference + of_left * left, wrong.value):
            return Pattern(
                "uncleared",
                f"the value is {of_reference:.3g} times the reference plus {of_left:.3g} times the "
                "gradient of the previous step",
                cause=_CAUSE,
                short="the gradient of the previous step is added to it",
            )
    return None
