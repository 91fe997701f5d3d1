"""A fault under pipeline parallelism is found where it was planted, on a stage or between two."""

from __future__ import annotations

import pytest
from pipeline_program import FAULTS, PARTS_FAULTS, train

from pytest_trainsafe.reference_models import gpt


def told(search):
    found = search()
    _, faults = found.judge(found.rewritten())
    return [(fault.phase, fault.target, fault.handed) for fault in faults]


@pytest.mark.trainsafe(train, pp=2, bug=list(FAULTS), dtype=["float64"])
def test_the_fault_of_a_stage(trainsafe, search):
    assert told(search) == [FAULTS[str(trainsafe.point.get("bug", ""))]]


@pytest.mark.trainsafe(
    train, pp=2, bug=["between", "handed on", "handed back"], parts=True, dtype=["float64"]
)
def test_the_fault_of_parts_without_a_module_around_them(trainsafe, search):
    assert told(search) == [PARTS_FAULTS[str(trainsafe.point.get("bug", ""))]]


@pytest.mark.trainsafe(gpt.train, pp=2, vpp=[1, 2], args={"layers": 4}, dtype=["float64"])
def test_a_correct_pipeline_agrees_rewritten_with_all_that_the_whole_has(search):
    found = search()
    comparison, faults = found.judge(found.rewritten())

    assert faults == []
    assert not comparison.findings
    assert not comparison.uncovered  # the two ends of decoder and model too
