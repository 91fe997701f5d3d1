"""A layout may be given by a function from a rank's coordinates to the slices that it holds."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe
from tests.support.end_to_end.models import placed_program

POINT = {"tp": 2, "dtype": ["float64"]}


def failing(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    return " ".join(str(failure.value).split())


@pytest.mark.trainsafe(placed_program.train, **POINT)
def test_a_correct_program_passes_with_parameters_and_activations_placed_by_a_function(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(placed_program.train, candidate_args={"fault": "rolled"}, **POINT)
def test_columns_in_another_order_than_the_function_says_are_found(
    candidate_trace, reference_trace
):
    text = failing(candidate_trace, reference_trace)

    assert "starts at second.output · activation · step 0" in text


@pytest.mark.trainsafe(placed_program.train, candidate_args={"fault": "consecutive"}, **POINT)
def test_a_function_that_gives_the_wrong_columns_fails_the_test(candidate_trace, reference_trace):
    text = failing(candidate_trace, reference_trace)

    assert "starts at first.output · activation · step 0" in text
