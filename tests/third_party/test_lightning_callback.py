"""Lightning's Trainer under DistributedDataParallel trains as it does on one device."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe

pytest.importorskip("lightning", reason="pip install lightning")

PROGRAM = "tests.support.third_party.callbacks.lightning_program:train"


@pytest.mark.trainsafe(PROGRAM, dp=2, level=["step", "microbatch"], dtype=["float32"])
def test_lightning_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    PROGRAM, dp=2, level=["step", "microbatch"], candidate_args={"fault": "loss"}
)
def test_a_loss_that_one_rank_scales_is_found(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure, match="starts at"):
        assert_trainsafe(candidate_trace, reference_trace)
