"""A fault under pipeline parallelism is found where it was planted, on a stage or between two."""

from __future__ import annotations

import pytest

from pytest_trainsafe.reference_models import gpt
from tests.support.localize.pipeline_program import FAULTS, PARTS_FAULTS, train


def located(search):
    """Phase, target and receiving pp rank of each fault that is found."""
    found = search()
    _, faults = found.judge(found.rewritten())
    return [(fault.phase, fault.target, fault.handed) for fault in faults]


@pytest.mark.trainsafe(train, pp=2, bug=list(FAULTS), dtype=["float64"])
def test_a_fault_planted_in_a_pipeline_is_located(trainsafe, search):
    assert located(search) == [FAULTS[str(trainsafe.point.get("bug", ""))]]


@pytest.mark.trainsafe(
    train, pp=2, bug=["between", "handed on", "handed back"], parts=True, dtype=["float64"]
)
def test_a_fault_planted_in_stages_watched_as_separate_layers_is_located(trainsafe, search):
    assert located(search) == [PARTS_FAULTS[str(trainsafe.point.get("bug", ""))]]


@pytest.mark.trainsafe(gpt.train, pp=2, vpp=[1, 2], args={"layers": 4}, dtype=["float64"])
def test_a_correct_pipeline_with_rewritten_tensors_agrees_with_all_of_the_reference(search):
    found = search()
    comparison, faults = found.judge(found.rewritten())

    assert faults == []
    assert not comparison.findings
    assert not comparison.uncovered  # includes the first input and last output of decoder and model
