"""The metamorphic relation `order`, which moves micro-batches between dp ranks."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_same_by
from pytest_trainsafe.reference_models import masked

SMALL = {"hidden": 8, "vocabulary": 16, "steps": 1, "microbatches": 4}


@pytest.mark.trainsafe(masked.train, dp=[2], dtype=["float64"], args=SMALL)
def test_moving_samples_between_dp_ranks_does_not_change_the_step(candidate_trace):
    assert_same_by("order", candidate_trace)


@pytest.mark.trainsafe(
    masked.train, dp=[2], dtype=["float64"], args={**SMALL, "fault": "mean-per-rank"}
)
def test_a_loss_averaged_over_each_ranks_own_tokens_is_found(candidate_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_same_by("order", candidate_trace)

    lead = failure.value.findings[0]
    assert lead.where is not None
    assert lead.where.kind == "loss"
    assert "at dp=2 does not train the same under the relation order" in str(failure.value)
