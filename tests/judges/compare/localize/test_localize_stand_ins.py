"""Pipeline stages that replace modules by stand-ins pass, and their faults are found."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from tests.support.localize.stand_in_program import train


@pytest.mark.trainsafe(train, pp=2, predict=[False, True], dtype=["float64"])
def test_a_correct_pipeline_with_stand_ins_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, pp=2, bug=["", "layer"], dtype=["float64"])
def test_only_a_faulty_module_is_blamed_in_stages_with_stand_ins(trainsafe, search):
    """A stand-in must not pass on values generated for the module that it replaces."""
    found = search()
    _, faults = found.judge(found.rewritten())

    at_fault = [("forward", "layers.1")] if trainsafe.point.get("bug", "") else []
    assert [(fault.phase, fault.target) for fault in faults] == at_fault
