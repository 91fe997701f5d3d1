"""A layout may be given by a function from a rank's coordinates to the slices that it holds."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe
from tests.support.end_to_end.models import placed_program, shared_heads

FLOAT64 = {"dtype": ["float64"]}
POINT = {"tp": 2, **FLOAT64}


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


@pytest.mark.trainsafe(shared_heads.train, tp=[2, 4], **FLOAT64)
def test_heads_that_neighbours_share_may_have_gradients_in_terms(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(shared_heads.train, candidate_args={"fault": "not summed"}, tp=4, **FLOAT64)
def test_terms_that_ranks_with_the_same_slices_do_not_sum_are_named(
    candidate_trace, reference_trace, localizing
):
    text = failing(candidate_trace, reference_trace)

    assert "starts at keys · main_grad · step 0" in text
    assert "the ranks of tp that hold the same slices (ranks 0, 1 and ranks 2, 3) hold" in text
    assert "the gradient reduction of 2 parameters: keys and values is wrong" in text


@pytest.mark.trainsafe(shared_heads.train, candidate_args={"fault": "halved"}, tp=4, **FLOAT64)
def test_shared_heads_are_not_blamed_for_a_fault_of_their_norm(
    candidate_trace, reference_trace, localizing
):
    text = failing(candidate_trace, reference_trace)

    assert "starts at norm.weight · main_grad · step 0" in text
    assert "faulty the forward and the backward of every module agree" in text
    assert "keys" not in text.split("faulty")[1].split("compared")[0]
