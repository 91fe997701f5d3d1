"""Recognises values of the previous step or micro-batch, alone or added to the right ones."""

from __future__ import annotations

import math

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor


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
                cause="what the previous step left in gradients, or in a buffer of them, is not "
                "set to zero before the backwards of this step",
                short="the gradient of the previous step is added to it",
            )
    return None
