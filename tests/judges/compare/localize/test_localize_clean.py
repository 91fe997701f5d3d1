"""A correct program, with rewritten tensors, agrees with its reference: no fault is found."""

from __future__ import annotations

import pytest

from pytest_trainsafe.reference_models import gpt
from tests.support.localize.stack_program import train

SMALL = {"layers": 1, "steps": 1}


def check_clean(found):
    comparison, faults = found.judge(found.rewritten())
    assert faults == []
    assert not comparison.findings
    return comparison


@pytest.mark.trainsafe(gpt.train, tp=2, cp=2, sp=True, args=SMALL, dtype=["bfloat16"])
def test_a_correct_gpt_with_rewritten_tensors_agrees_with_its_reference_in_every_dtype(search):
    for dtype in ("float64", "float32", "bfloat16"):
        comparison = check_clean(search(dtype))

        assert comparison.compared["activation"] > 20
        assert comparison.compared["main_grad"] > 10


@pytest.mark.trainsafe(train, tp=2, dp=2, recompute=[False, True], dtype=["float64"])
def test_a_correct_program_with_rewritten_tensors_agrees_with_and_without_recomputation(search):
    check_clean(search())
