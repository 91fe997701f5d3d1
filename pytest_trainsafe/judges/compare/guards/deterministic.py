"""Finds a program that differs from itself: two Runs with the same seed compute different things.

Such a program cannot be judged, and its difference from itself must not become an allowance.
Called by the ladder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.unstable import unstable
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.same_computation import differs_from_itself
from pytest_trainsafe.launch import GroupFailure

if TYPE_CHECKING:
    from pytest_trainsafe.runs.traces import Traces


def not_deterministic(
    rung: RungTraces, comparison: Comparison, dtype: str, reference: Traces
) -> Finding | None:
    """A doubt if a repetition of the reference differs from it; else None.

    The repetition is launched only on a suspicion: a Run with noise did another computation, or
    noise changes tensors far more than rounding explains.
    """
    if rung.noise_flaw() is None and not unstable(comparison):
        return None
    try:
        again = replace(reference, repeat=reference.repeat + 1, replay=None).at(dtype)
    except GroupFailure:
        return None  # it ended without an error before
    flaw = differs_from_itself(rung.reference, again)
    if flaw is None:
        return None
    message = (
        "the program is not deterministic, so it cannot be compared with its reference: with the "
        f"same seed, a second run of the reference {flaw.what}. Seed every generator from "
        "ctx.seed, and derive no number from the time, the process or the order of a set; "
        "assert_deterministic finds the operator"
    )
    return Finding(
        verdict="inconclusive",
        judge="vacuity",
        check="deterministic",
        message=message,
        where=flaw.id,
        dtype=rung.dtype,
    )
