"""Compares and judges the traces of one rung: a dtype of a test, or a pair of recorded Runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_trainsafe.config.checks import is_accepted
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.leading import led_by_setup, setup_hints
from pytest_trainsafe.judges.compare.guards.not_compared import not_compared
from pytest_trainsafe.judges.compare.guards.vacuity import guard
from pytest_trainsafe.judges.compare.judgement import RungJudgement
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.unmatched import CHECK, unmatched
from pytest_trainsafe.judges.loosen import Loosen, require_used
from pytest_trainsafe.judges.one_thread import one_thread
from pytest_trainsafe.trace.reader import Trace

if TYPE_CHECKING:
    from pytest_trainsafe.judges.compare.declarations.proposal import Proposal


def compared(
    rung: RungTraces, loosen: Sequence[Loosen], screened: Comparison | None = None
) -> Comparison:
    """The comparison of a rung, with the annotations that match nothing.

    Raises ArgumentError if an entry of `loosen` matches none.
    """
    require_used(loosen, rung.reference.ids())
    with one_thread():
        comparison = compare(rung, loosen, screened)
        if screened is None:
            comparison.findings += unmatched(rung.candidate)
        return comparison


def of_tensors(comparison: Comparison) -> Comparison:
    """The comparison without its findings on annotations that match nothing."""
    findings = [finding for finding in comparison.findings if finding.check != CHECK]
    return replace(comparison, findings=findings)


def explained(rung: RungTraces, comparison: Comparison) -> Comparison:
    """A failed comparison with what explains all of its failures at once."""
    from pytest_trainsafe.judges.compare.explain.common_factor import with_factor

    with one_thread():
        return led_by_setup(rung, with_factor(rung, comparison))


def judged_rung(
    dtype: str,
    rung: RungTraces,
    comparison: Comparison,
    accepted: set[str],
    unsteady: Finding | None,
) -> RungJudgement:
    """The judgement on a comparison; `unsteady` is the doubt that a program differs from itself."""
    # A failure is a verdict already; guards apply only to a comparison that would pass.
    found = [unsteady] if unsteady is not None else guard(rung, comparison)
    doubts = [f for f in comparison.findings if f.verdict == "inconclusive"]
    doubts += [] if comparison.failed else found
    return RungJudgement(
        dtype=dtype,
        rounding=rung.dtype,
        comparison=comparison,
        doubts=[f for f in doubts if not is_accepted(f.check, accepted)],
        hints=setup_hints(found, comparison),
        accepted=[f for f in doubts if is_accepted(f.check, accepted)],
        cast=rung.cast,
        reference=_named(rung.reference),
        not_compared=not_compared(rung, comparison),
        samples=1 + len(rung.resampled),
    )


def rest_of(dtype: str, proposal: Proposal | None, accepted: set[str]) -> RungJudgement | None:
    """The judgement of what still fails with the proposed layouts; None if nothing does."""
    if proposal is None or proposal.rest is None or proposal.settles or not proposal.leads:
        return None
    from pytest_trainsafe.judges.compare.explain.common_factor import with_factor

    rung, comparison = proposal.rest
    with one_thread():
        comparison = with_factor(rung, comparison)
    return judged_rung(dtype, rung, comparison, accepted, None)


def _named(reference: Trace) -> str:
    return "a single device" if reference.manifest.world_size == 1 else str(reference.point)
