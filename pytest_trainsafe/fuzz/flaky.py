"""Whether a failure is flaky: the same Runs again end otherwise, or differ as much as it does.

A bug makes the same difference each time.  Where repeated Runs of one program differ from each
other as much as the failing tensor differs from its reference, the failure says nothing about
parallelism.  Differences far below it, such as those of atomic additions on a GPU, do not matter.
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

#: The share of a failure's error by which repeated Runs may differ.
ALLOWED_SHARE = 0.1
#: The relative distance that no rounding explains, where no tensor fails.
MAX_DISTANCE = 1e-2


def repeated(traces: Traces) -> Traces:
    """The same Runs, executed again."""
    return replace(traces, repeat=1)


def difference_text(candidate: Traces, findings: Sequence[Finding]) -> str:
    """How a tensor differs between two executions of the same Run; "" if it does not matter.

    The tensor is the failing one.  Without one, as in an inconclusive comparison, it is the first
    that differs, if it differs by more than rounding could explain.
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
    from pytest_trainsafe.judge.replay.determinism.divergence import first_divergence

    found = first_divergence(first, second)
    if found is None or found.where is None:
        return ""
    distance = _distance(first, second, found.where)
    if distance < MAX_DISTANCE:
        return ""
    return f"two executions of the same Run differ by {distance:.1e} at {found.where}"


def cause_text(candidate: Traces) -> str:
    """What the determinism judge says about the Run, "" if its repetition has the same bits."""
    from pytest_trainsafe.judge.replay.determinism.judge import judge_determinism
    from pytest_trainsafe.launch import GroupFailure

    try:
        findings = judge_determinism(candidate, 2).findings
    except GroupFailure as failure:
        return f"not known, because a Run ended: {str(failure).partition(chr(10))[0]}"
    if not findings:
        return ""
    first = findings[0]
    cause = first.pattern.cause if first.pattern is not None else ""
    return f"{first.about}: {first.message}{f'. {cause}' if cause else ''} ({first.check})"


def _distance(first: Trace, second: Trace, where: TensorId) -> float:
    """The relative Frobenius distance of one tensor; 0.0 if its values were not recorded."""
    from pytest_trainsafe.align.logical import logical_tensor

    try:
        one, other = (logical_tensor(trace, where).tensor for trace in (first, second))
    except ArgumentError:
        return 0.0
    if one is None or other is None or one.shape != other.shape:
        return 0.0
    size = float(one.double().norm())
    return float((one.double() - other.double()).norm()) / size if size else 0.0
