"""The ladder: judges a test's Runs dtype by dtype, widest first, and writes the report.

Logic is judged where rounding cannot hide it: in float64 every logic bug stands out at 1e-12.
Called by the assertions, which import it when they are called.
"""

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


def climb(
    candidate: Traces, reference: Traces, loosen: Sequence[Loosen], accept: Sequence[str]
) -> str:
    """Judge every rung of a test, down to the first that fails; the report, or "" for a pass."""
    case = candidate.case
    accepted = {*accept, *case.settings.accept}
    for dtype in case.rungs:
        reference.prefetch(dtype)
        candidate.prefetch(dtype)
    judged: list[Judged] = []
    spent = 0.0
    for dtype in case.rungs:
        shadowed = dtype != "float64" and "float64" in case.rungs
        rung = Rung(
            dtype=reference.rounding(dtype),
            candidate=candidate.at(dtype),
            reference=reference.at(dtype),
            perturbed=reference.perturbed(dtype),
            shadow=reference.at("float64") if shadowed else None,
        )
        began = time.perf_counter()
        judged.append(_judge(dtype, rung, loosen, accepted))
        spent += time.perf_counter() - began
        if judged[-1].failed:
            break
    if candidate.publish is not None:
        seconds = {**candidate.seconds, "compare": spent}
        candidate.publish(_summary(str(case.point), judged, seconds))
    if not judged[-1].failed:
        return ""
    return failure_message(case.program.name, str(case.point), judged, case.nodeid)


def judge_pair(
    candidate: Trace | Path | str,
    reference: Trace | Path | str,
    perturbed: Trace | Path | str | None,
    shadow: Trace | Path | str | None,
    loosen: Sequence[Loosen],
    accept: Sequence[str],
) -> str:
    """Judge two recorded Runs; the report, or "" for a pass."""
    opened = _opened(reference)
    rung = Rung(
        dtype=opened.manifest.dtype,
        candidate=_opened(candidate),
        reference=opened,
        perturbed=_opened(perturbed) if perturbed is not None else None,
        shadow=_opened(shadow) if shadow is not None else None,
    )
    # That only equal bits pass is what a caller without measurements asked for.
    judged = _judge(rung.dtype, rung, loosen, {*accept, "measured"})
    if not judged.failed:
        return ""
    return failure_message(opened.manifest.program, str(rung.candidate.point), [judged], "")


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
