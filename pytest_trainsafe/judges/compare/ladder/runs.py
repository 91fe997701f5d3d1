"""Requests the Runs of one rung: candidate, reference, and those that measure rounding.

Called by the ladder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_trainsafe.align.calls import renumbered
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tolerance.resample import ROUNDS, needs_samples, undecided
from pytest_trainsafe.launch import GroupFailure

if TYPE_CHECKING:
    from pytest_trainsafe.runs.traces import Traces


def make_rung(
    dtype: str,
    candidate: Traces,
    reference: Traces,
    shadowed: bool,
    launched: Callable[[], None] | None = None,
) -> RungTraces:
    """The traces of one rung; those not yet recorded are launched together.

    If `shadowed`, the reference's trace at the rung that measures this one is one of them.
    `launched` is called when all of them are launched, before the Run with noise is awaited.
    """
    rung = rung_named(dtype)
    candidate.prefetch(dtype)
    for needed in (dtype, rung.measured_by) if shadowed else (dtype,):
        reference.prefetch(needed)
    decided = reference.decided(dtype)
    candidate, measured = candidate.replaying(decided), reference.replaying(decided)
    if rung.decided_by:
        reference = measured  # its own decisions mean nothing either
    if decided is not None:
        candidate.prefetch(dtype)
        measured.prefetch(rung.measured_by if shadowed else dtype)
    trusted, noisy = reference.at(dtype), not rung.exact
    shadow = measured.at(rung.measured_by) if shadowed else None
    if noisy:
        measured.prefetch_perturbed(dtype, [0])
    if launched is not None:
        launched()
    perturbed = measured.perturbed(dtype) if noisy else None
    tested = renumbered(candidate.at(dtype), trusted)
    cast, rounding = reference.cast(dtype), reference.rounding(dtype)
    return RungTraces(rounding, tested, trusted, perturbed, shadow, cast=cast)


def measured_again(
    rung: RungTraces,
    comparison: Comparison,
    dtype: str,
    reference: Traces,
    judge: Callable[[RungTraces], Comparison],
) -> tuple[RungTraces, Comparison]:
    """Judge again with more runs with noise, as long as too few may be the cause of a failure."""
    for each in ROUNDS:
        if not needs_samples(comparison, each):
            return rung, comparison
        rung = more_samples(rung, dtype, reference, each.samples)
        comparison = judge(rung)
    undecided(comparison)
    return rung, comparison


def more_samples(rung: RungTraces, dtype: str, reference: Traces, samples: int) -> RungTraces:
    """The rung with rounding measured by `samples` runs with noise in total.

    Runs in which the program fails are skipped, because the noise may cause the failure.
    """
    measured = reference.replaying(reference.decided(dtype))
    measured.prefetch_perturbed(dtype, range(1, samples))
    resampled = []
    for sample in range(1, samples):
        with contextlib.suppress(GroupFailure):
            resampled.append(measured.perturbed(dtype, sample))
    return replace(rung, resampled=tuple(resampled))
