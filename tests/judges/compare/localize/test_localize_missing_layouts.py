"""A program without layouts of modules, whose gradients are declared means over dp.

It is not blamed for what these layouts explain, nor is the axis of another fault.
"""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.localize.stack_program import train

pytestmark = pytest.mark.usefixtures("localizing")


def report(candidate, reference) -> str:
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate, reference)
    return str(failure.value)


@pytest.mark.trainsafe(train, tp=2, dp=2, dtype="float64", args={"means": True})
def test_a_correct_program_gets_a_proposal_and_no_accusation(candidate_trace, reference_trace):
    text = report(candidate_trace, reference_trace)
    assert text.splitlines()[0].endswith(": layouts are missing for 6 modules")
    assert "up: {output: {tp_dim: -1}}" in text
    assert "relu: {output: {tp_dim: -1}}" in text
    assert "with these annotations, every tensor" in text
    for accusation in ("starts at", "pattern", "faulty", "axis "):
        assert accusation not in text


@pytest.mark.trainsafe(
    train, tp=2, dp=2, dtype="float64", args={"means": True}, candidate_args={"bug": "backward"}
)
def test_a_fault_over_tp_is_gone_without_tp(candidate_trace, reference_trace):
    text = " ".join(report(candidate_trace, reference_trace).split())
    assert "layouts are missing for 6 modules" in text
    assert "these annotations explain some of the failures" in text
    assert "axis tp: at tp=1 the fault is gone, at dp=1 it is still there" in text
