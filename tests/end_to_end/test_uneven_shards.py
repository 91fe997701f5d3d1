"""Eleven features over two ranks, 6 and 5, are initialised and compared as one tensor."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.models.uneven_program import train


@pytest.mark.trainsafe(train, tp=2)
def test_uneven_shards_of_a_correct_program_pass(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
    shapes = [
        next(event.shape for id, event in rank.tensors.items() if id.path == "up.weight")
        for rank in candidate_trace.at("float64").ranks
    ]
    assert shapes == [(6, 8), (5, 8)]


@pytest.mark.trainsafe(train, tp=2, candidate_args={"wrong_offset": True})
def test_rows_from_a_wrong_offset_are_found_before_the_first_step(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    text = " ".join(str(failure.value).split())
    assert "starts at up.weight · param · before the first step" in text
    assert "2 of 3 initial parameters" in text
