"""What test authors call.  Each assertion judges, reports, and fails as an ordinary test does.

Test modules import these names at collection, so nothing heavy is imported until one is called.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pytest_trainsafe.core.usage import shown as described
from pytest_trainsafe.errors import ArgumentTypeError, TrainsafeError
from pytest_trainsafe.judge.compare.tolerance.loosen import Loosen

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_trainsafe.core.finding import Finding
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.trace.reader import Trace

__all__ = ["Loosen", "TrainsafeFailure", "assert_equivalent", "assert_trainsafe"]


class TrainsafeFailure(TrainsafeError, AssertionError):
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
    accept: Collection[str] = (),
) -> None:
    """Assert that the candidate trains like its reference, at every rung of the ladder.

    Takes the fixtures `candidate_trace` and `reference_trace`.  Rungs are judged from float64
    down and stop at the first that fails.  `loosen` multiplies the tolerance of some tensors,
    each with a reason; `accept` names inconclusive checks that do not fail this test.
    Raises TrainsafeFailure with the report; GroupFailure when ranks did not finish; ArgumentError
    for an argument that it does not take.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judge.joint import judge_case
    from pytest_trainsafe.launch import GroupFailure
    from pytest_trainsafe.report.joint import report_of

    _require_fixture(candidate, "candidate")
    _require_fixture(reference, "reference")
    _require_options("assert_trainsafe", loosen, accept)
    try:
        judgement = judge_case(candidate, reference, loosen, tuple(accept))
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
    accept: Collection[str] = (),
) -> None:
    """Assert that two recorded Runs of one dtype are equal up to rounding.

    Takes traces or their directories.  `perturbed` is the reference under noise of the size of
    rounding, `shadow` the reference in float64.  Give both: one alone is one sample of what
    rounding does, too few where a gradient is nothing else.  Without any only equal bits pass.
    Raises TrainsafeFailure with the report, TraceError for a trace that cannot be read, and
    ArgumentError for an argument that it does not take.
    """
    __tracebackhide__ = True
    from pytest_trainsafe.judge.ladder import judge_pair
    from pytest_trainsafe.report.message import message_of

    _require_recorded(candidate, "candidate")
    _require_recorded(reference, "reference")
    for measure, role in ((perturbed, "perturbed"), (shadow, "shadow")):
        if measure is not None:
            _require_recorded(measure, role)
    _require_options("assert_equivalent", loosen, accept)
    judgement = judge_pair(candidate, reference, perturbed, shadow, loosen, tuple(accept))
    if judgement.verdict != "pass":
        raise TrainsafeFailure(message_of(judgement), judgement.findings)


def _require_fixture(traces: object, role: str) -> None:
    """ArgumentTypeError unless these are the Runs of a test in this role."""
    call = "assert_trainsafe(candidate_trace, reference_trace)"
    if not hasattr(traces, "at"):
        if hasattr(traces, "manifest") or isinstance(traces, (str, os.PathLike)):
            instead = "assert_equivalent takes recorded traces and their directories"
        else:
            instead = f"call {call}"
        raise ArgumentTypeError(
            f"assert_trainsafe was given {described(traces)} as its {role}; it takes the fixtures "
            f"candidate_trace and reference_trace. {instead}"
        )
    if getattr(traces, "role", role) != role:
        raise ArgumentTypeError(
            f"assert_trainsafe was given the {getattr(traces, 'role', '')} as its {role}; call "
            f"{call}"
        )


def _require_recorded(given: object, role: str) -> None:
    """ArgumentTypeError unless this is a recorded trace or could be its directory."""
    from pytest_trainsafe.trace.reader import Trace

    if hasattr(given, "prefetch"):
        raise ArgumentTypeError(
            f"assert_equivalent was given a fixture as its {role}; it takes recorded traces or "
            "their directories. Call assert_trainsafe(candidate_trace, reference_trace), or give "
            'it candidate_trace.at("float64")'
        )
    if not isinstance(given, (Trace, str, os.PathLike)):
        raise ArgumentTypeError(
            f"assert_equivalent was given {described(given)} as its {role}; it takes a recorded "
            'trace, such as candidate_trace.at("float64"), or the path of its directory'
        )


def _require_options(function: str, loosen: object, accept: object) -> None:
    """ArgumentTypeError unless these are lists of Loosen and of names of checks."""
    if not isinstance(loosen, (list, tuple)) or not all(isinstance(e, Loosen) for e in loosen):
        raise ArgumentTypeError(
            f"{function} was given {described(loosen)} as loosen; it takes a list of Loosen: "
            'loosen=[Loosen("*.router.weight", factor=3, reason="ties break differently")]'
        )
    # Any collection of names will do, but a text is a collection of letters.
    names = accept if isinstance(accept, (list, tuple, set, frozenset)) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(
            f"{function} was given {described(accept)} as accept; it takes a list of names of "
            'checks: accept=["moved"]'
        )
