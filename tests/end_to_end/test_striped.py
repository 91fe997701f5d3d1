"""Context parallelism that deals tokens out in turn is declared by `cp_order: striped`."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe
from tests.support.end_to_end.models import striped_program


@pytest.mark.trainsafe(striped_program.train, cp=2, dtype=["float64"])
def test_a_correct_program_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    striped_program.train, cp=2, dtype=["float64"], candidate_args={"fault": True}
)
def test_labels_of_other_tokens_are_found(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure, match=r"starts at\s+loss · loss · step 0"):
        assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(striped_program.train, cp=2, dtype=["float64"], args={"order": "zigzag"})
def test_another_declared_order_is_said_to_be_one(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert "indices along dimension 1 are in another order: index 1 holds the values of" in text
