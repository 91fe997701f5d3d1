"""A program that chooses its own dtype is judged by that dtype's rounding in every rung.

Its Runs in float64 and float32 compute the same, so that one does not measure the other's rounding.
"""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.own_precision_program import train

CAST = {"own": "bfloat16", "autocast": False}
AUTOCAST = {"own": "float32", "autocast": True}


@pytest.mark.trainsafe(train, dp=2, args=CAST)
def test_a_correct_program_in_a_dtype_of_its_own_passes(
    candidate_trace, reference_trace, published
):
    assert_trainsafe(candidate_trace, reference_trace)

    summary = published()
    assert [rung["dtype"] for rung in summary["rungs"]] == ["float64", "float32"]
    notes = [note for note in summary["notes"] if "by the rounding of bfloat16" in note]
    assert [note.partition(" ")[0] for note in notes] == ["float64", "float32"]


@pytest.mark.trainsafe(train, dp=2, args=AUTOCAST, candidate_args={"reduced": False})
def test_a_missing_all_reduce_is_found_in_it_with_the_cast_that_limits_the_precision(
    candidate_trace, reference_trace
):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert "an all-reduce over dp is missing" in text
    assert "float64 was judged by the rounding of bfloat16" in text
