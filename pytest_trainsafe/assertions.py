"""What test authors call.  Each assertion judges, reports, and fails as an ordinary test does.

Test modules import these names at collection, so nothing heavy is imported until one is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_trainsafe.judge.compare.tolerance.loosen import Loosen

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_trainsafe.core.finding import Finding
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.trace.reader import Trace

__all__ = ["Loosen", "TrainsafeFailure", "assert_equivalent", "assert_trainsafe"]


class TrainsafeFailure(AssertionError):
    """A candidate differs from its reference, or nothing could be said.  The text is the report.

    `findings` are what the judges found: what is wrong, in the order of dataflow, and doubts.
    """

    def __init__(self, report: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(report)
        self.findings = tuple(findings)


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
    from pytest_trainsafe.judge.joint import judge_case
    from pytest_trainsafe.launch import GroupFailure
    from pytest_trainsafe.report.joint import report_of

    for traces, role in ((candidate, "candidate"), (reference, "reference")):
        if not hasattr(traces, "at"):
            raise TypeError(
                f"assert_trainsafe was given a {type(traces).__name__} as its {role}; it takes the "
                "fixtures candidate_trace and reference_trace. assert_equivalent takes recorded "
                "traces"
            )
        if getattr(traces, "role", role) != role:
            raise TypeError(
                f"assert_trainsafe was given the {traces.role} as its {role}; call "
                "assert_trainsafe(candidate_trace, reference_trace)"
            )
    try:
        judgement = judge_case(candidate, reference, loosen, accept)
    except GroupFailure as failure:
        # Where the ranks failed is in its text; where they were awaited is nobody's concern.
        raise failure.with_traceback(None) from None
    if judgement.verdict != "pass":
        raise TrainsafeFailure(report_of(judgement), judgement.findings)


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
    rounding, `shadow` the reference in float64.  Give both: one alone is one sample of what
    rounding does, too few where a gradient is nothing else.  Without any only equal bits pass.
    Raises TrainsafeFailure with the report, TraceError for a trace that cannot be read.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judge.ladder import judge_pair
    from pytest_trainsafe.report.message import message_of

    for given in (candidate, reference, perturbed, shadow):
        if hasattr(given, "prefetch"):
            raise TypeError(
                "assert_equivalent takes recorded traces or their directories, not a fixture; call "
                "assert_trainsafe(candidate_trace, reference_trace), or give it "
                'candidate_trace.at("float64")'
            )
    judgement = judge_pair(candidate, reference, perturbed, shadow, loosen, accept)
    if judgement.verdict != "pass":
        raise TrainsafeFailure(message_of(judgement), judgement.findings)
