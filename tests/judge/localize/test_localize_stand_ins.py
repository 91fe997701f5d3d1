"""Stages with stand-ins, or that call a module again, pass; their faults are found."""

from __future__ import annotations

import pytest
from stand_in_program import train

from pytest_trainsafe import assert_trainsafe


@pytest.mark.trainsafe(train, pp=2, predict=[False, True], dtype=["float64"])
def test_a_correct_model_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, pp=2, bug=["", "layer"], dtype=["float64"])
def test_only_a_module_at_fault_is_blamed(trainsafe, search):
    """With stand-ins that would hand on the generated values of what they stand in for."""
    found = search()
    _, faults = found.judge(found.rewritten())

    at_fault = [("forward", "layers.1")] if trainsafe.point.get("bug", "") else []
    assert [(fault.phase, fault.target) for fault in faults] == at_fault
