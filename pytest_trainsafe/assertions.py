"""What test authors call.  Each assertion judges, reports, and fails as an ordinary test does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.compare.judge import Comparison, compare
from pytest_trainsafe.compare.loosen import Loosen
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.compare.vacuity import guard
from pytest_trainsafe.report.message import Judged, failure_message
from pytest_trainsafe.report.summary import PointSummary, RungSummary
from pytest_trainsafe.trace.reader import Trace

if TYPE_CHECKING:
    from pytest_trainsafe.session import Traces

__all__ = ["Loosen", "TrainsafeFailure", "assert_equivalent", "assert_trainsafe"]


class TrainsafeFailure(AssertionError):
    """A candidate differs from its reference, or nothing could be said.  The text is the report."""


def assert_trainsafe(
    candidate: Traces,
    reference: Traces,
    *,
    loosen: Sequence[Loosen] = (),
    accept: Sequence[str] = (),
) -> None:
    """Assert that the candidate trains like its reference, at every rung of the ladder.

    Takes the fixtures `candidate_trace` and `reference_trace`.  Rungs are judged from float64
    down and stop at the first that fails.  `loosen` multiplies the tolerance of some tensors,
    each with a reason; `accept` names inconclusive checks that do not fail this test.
    Raises TrainsafeFailure with the report; GroupFailure when ranks did not finish.
    """
    __tracebackhide__ = True
    case = candidate.case
    accepted = {*accept, *case.settings.accept}
    for dtype in case.rungs:
        reference.prefetch(dtype)
        candidate.prefetch(dtype)
    judged: list[Judged] = []
    spent = 0.0
    for dtype in case.rungs:
        rung = Rung(
            reference.rounding(dtype),
            candidate.at(dtype),
            reference.at(dtype),
            reference.perturbed(dtype),
            reference.at("float64") if dtype != "float64" and "float64" in case.rungs else None,
        )
        began = time.perf_counter()
        entry = _judge(dtype, rung, loosen, accepted)
        spent += time.perf_counter() - began
        judged.append(entry)
        if entry.failed:
            break
    seconds = {**candidate.seconds, "compare": spent}
    if candidate.publish is not None:
        candidate.publish(_summary(str(case.point), judged, seconds))
    if any(entry.failed for entry in judged):
        raise TrainsafeFailure(
            failure_message(case.program.name, str(case.point), judged, case.nodeid)
        )


def assert_equivalent(
    candidate: Trace | Path | str,
    reference: Trace | Path | str,
    *,
    perturbed: Trace | Path | str | None = None,
    shadow: Trace | Path | str | None = None,
    loosen: Sequence[Loosen] = (),
    accept: Sequence[str] = (),
) -> None:
    """Assert that two recorded Runs of one dtype are equal up to rounding.

    Takes traces or their directories.  `perturbed` is the reference under noise of the size of
    rounding, `shadow` the reference in float64; without both only equal bits pass.
    Raises TrainsafeFailure with the report, TraceError for a trace that cannot be read.
    """
    __tracebackhide__ = True
    opened = _opened(reference)
    rung = Rung(
        opened.manifest.dtype,
        _opened(candidate),
        opened,
        _opened(perturbed) if perturbed is not None else None,
        _opened(shadow) if shadow is not None else None,
    )
    judged = _judge(rung.dtype, rung, loosen, {*accept, "measured"})
    if judged.failed:
        point = str(rung.candidate.point)
        raise TrainsafeFailure(failure_message(opened.manifest.program, point, [judged], ""))


def _judge(dtype: str, rung: Rung, loosen: Sequence[Loosen], accepted: set[str]) -> Judged:
    comparison = compare(rung, loosen)
    # A failure is a verdict already; guards speak where there would be a pass.
    doubts = [] if comparison.failed else guard(rung, comparison)
    inconclusive = [f for f in comparison.findings if f.verdict == "inconclusive"] + doubts
    return Judged(
        dtype=dtype,
        rounding=rung.dtype,
        comparison=comparison,
        doubts=[f for f in inconclusive if f.check not in accepted],
        accepted=[f for f in inconclusive if f.check in accepted],
        cast=next(iter(rung.reference.ranks[0].note("narrowed")), ""),
    )


def _summary(point: str, judged: Sequence[Judged], seconds: dict[str, float]) -> PointSummary:
    verdict = "fail" if any(j.comparison.failed for j in judged) else "pass"
    summary: PointSummary = {
        "point": point,
        "verdict": "fail" if verdict == "fail" else "pass",
        "rungs": [_rung_summary(j.dtype, j.comparison) for j in judged],
        "seconds": {stage: round(spent, 3) for stage, spent in seconds.items()},
    }
    if verdict == "pass" and any(j.doubts for j in judged):
        summary["verdict"] = "inconclusive"
        summary["reason"] = judged[-1].doubts[0].message
    return summary


def _rung_summary(dtype: str, comparison: Comparison) -> RungSummary:
    return {
        "dtype": dtype,
        "tensors": sum(comparison.compared.values()),
        "worst": comparison.worst,
        "worst_name": str(comparison.worst_id) if comparison.worst_id is not None else "",
    }


def _opened(trace: Trace | Path | str) -> Trace:
    return trace if isinstance(trace, Trace) else Trace.open(trace)
