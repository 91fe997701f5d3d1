"""A correct program agrees with its reference when both are rewritten: nothing is at fault."""

from __future__ import annotations

import pytest
from stack_program import train

from pytest_trainsafe.reference_models import gpt


def check_clean(found):
    comparison, faults = found.judge(found.rewritten())
    assert faults == []
    assert not comparison.findings
    return comparison


@pytest.mark.trainsafe(gpt.train, tp=2, cp=2, sp=True, args={"layers": 1})
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_gpt_agrees_rewritten_in_every_dtype(search, dtype):
    comparison = check_clean(search(dtype))

    assert comparison.compared["activation"] > 20
    assert comparison.compared["main_grad"] > 10


@pytest.mark.trainsafe(train, tp=2, dp=2, recompute=[False, True])
def test_recomputation_rewrites_the_same_values(search):
    check_clean(search())
