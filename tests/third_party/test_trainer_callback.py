"""transformers' Trainer under DistributedDataParallel trains as it does on one device."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe

pytest.importorskip("transformers", reason="pip install transformers accelerate")
pytest.importorskip("accelerate", reason="pip install transformers accelerate")

PROGRAM = "tests.support.third_party.callbacks.trainer_program:train"


@pytest.mark.trainsafe(PROGRAM, dp=2, level=["microbatch", "step"], dtype=["float32"])
def test_the_trainer_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    PROGRAM, dp=2, level=["microbatch", "step"], candidate_args={"fault": "rate"}
)
def test_a_wrong_learning_rate_is_found_in_the_updates(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure, match=r"starts at .* · update · step 0"):
        assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(PROGRAM, dp=2, candidate_args={"fault": "order"})
def test_micro_batches_numbered_in_the_wrong_order_are_found_at_micro_batch_1(
    candidate_trace, reference_trace
):
    with pytest.raises(TrainsafeFailure, match=r"starts at .*micro-batch 1"):
        assert_trainsafe(candidate_trace, reference_trace)
