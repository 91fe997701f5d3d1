"""Decides whether a failure is flaky, by repeating its Runs.

A bug makes the same difference each time.  If the repeated Runs end differently, or if a tensor
differs between them about as much as the failing tensor differs from its reference, the failure
says nothing about parallelism.  Far smaller differences, such as those of atomic additions on a
GPU, do not matter.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_trainsafe.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_trainsafe.core.finding import Finding
    from pytest_trainsafe.core.tensor_id import TensorId
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.trace.reader import Trace

#: Repeated Runs may differ by this share of the failing tensor's error.
ALLOWED_SHARE = 0.1
#: Where no tensor fails, repeated Runs may differ by this relative distance, as by rounding.
MAX_DISTANCE = 1e-2


def repeated(traces: Traces, number: int = 1) -> Traces:
    """The same Traces, whose Runs are executed again; `number` counts the executions from 1."""
    return replace(traces, repeat=number)


def difference_text(candidate: Traces, findings: Sequence[Finding]) -> str:
    """A text on a tensor that differs between two executions of the same Run; "" if none matters.

    The tensor is the failing one.  If none failed, as in an inconclusive comparison, it is the
    first that differs, if it differs by more than rounding can explain.
    """
    lead = next((f for f in findings if f.verdict == "fail" and f.where is not None), None)
    dtype = lead.dtype if lead is not None and lead.dtype else candidate.case.rungs[0]
    first, second = candidate.at(dtype), repeated(candidate).at(dtype)
    if lead is None or lead.where is None or lead.error is None:
        return _first_difference(first, second)
    distance = _distance(first, second, lead.where)
    least = ALLOWED_SHARE * lead.error if math.isfinite(lead.error) else ALLOWED_SHARE
    if not distance or distance < least:
        return ""
    return (
        f"two executions of the same Run differ by {distance:.1e} at {lead.where}, which differs "
        f"from the reference by {lead.error:.1e}"
    )


def _first_difference(first: Trace, second: Trace) -> str:
    from pytest_trainsafe.judges.replay.determinism.divergence import first_divergence

    found = first_divergence(first, second)
    if found is None or found.where is None:
        return ""
    distance = _distance(first, second, found.where)
    if distance < MAX_DISTANCE:
        return ""
    return f"two executions of the same Run differ by {distance:.1e} at {found.where}"


def cause_text(candidate: Traces) -> str:
    """What the determinism judge says about the Run; "" if a repetition gives the same bits."""
    from pytest_trainsafe.judges.replay.determinism.judge import judge_determinism
    from pytest_trainsafe.launch import GroupFailure

    try:
        findings = judge_determinism(candidate, 2).findings
    except GroupFailure as failure:
        return f"not known, because a Run failed: {str(failure).partition(chr(10))[0]}"
    if not findings:
        return ""
    first = findings[0]
    cause = first.pattern.cause if first.pattern is not None else ""
    return f"{first.about}: {first.message}{f'. {cause}' if cause else ''} ({first.check})"


def _distance(first: Trace, second: Trace, where: TensorId) -> float:
    """The Frobenius distance of a tensor between two Traces, relative to its norm in the first.

    0.0 if its values were not recorded.
    """
    from pytest_trainsafe.align.logical import logical_tensor

    try:
        one, other = (logical_tensor(trace, where).whole for trace in (first, second))
    except ArgumentError:
        return 0.0
    if one is None or other is None or one.shape != other.shape:
        return 0.0
    size = float(one.double().norm())
    return float((one.double() - other.double()).norm()) / size if size else 0.0
