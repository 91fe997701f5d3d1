"""Recognises stale values: those of the previous step or micro-batch."""

from __future__ import annotations

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judge.compare.explain.wrong_tensor import WrongTensor, by_few


def stale(wrong: WrongTensor) -> Pattern | None:
    """Matches if the value equals an earlier value of the reference.

    Never matches if only a few elements differ, because they may be equal by chance.
    """
    if by_few(wrong.value - wrong.reference):
        return None
    for when, earlier in wrong.earlier.items():
        if earlier.shape == wrong.value.shape and wrong.explains(wrong.value, earlier):
            return Pattern(
                "stale",
                f"the value equals the reference's value {when}",
                cause="a buffer, a copy or an input is not updated in time",
            )
    return None
