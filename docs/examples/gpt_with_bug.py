"""What a failure looks like: layer norms whose gradients miss an all-reduce (Megatron-LM #1446).

This test fails, so `pytest docs/examples` leaves it out: the file is not named `test_*.py`.
Run it with `pytest docs/examples/gpt_with_bug.py --trainsafe-localize 120`.
"""

import pytest

from pytest_trainsafe import Traces, assert_trainsafe
from pytest_trainsafe.reference_models import gpt


@pytest.mark.trainsafe(gpt.train, tp=2, sp=True, candidate_args={"bug": "sp-layernorm-grads"})
def test_gpt_with_a_planted_bug(candidate_trace: Traces, reference_trace: Traces) -> None:
    assert_trainsafe(candidate_trace, reference_trace)
