"""Training loops that split batches over dp, record whole steps, or stride micro-batches."""

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe
from tests.support.end_to_end import loop_programs

#: float64 alone, since these faults do not depend on rounding.
AT = {"dp": 2, "dtype": ["float64"]}


def report(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    return " ".join(str(failure.value).split())


@pytest.mark.trainsafe(loop_programs.split, **AT)
def test_batches_split_over_dp_ranks_pass(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(loop_programs.split, **AT, candidate_args={"fault": "statistics"})
def test_batch_norm_statistics_of_one_ranks_slice_are_reported(candidate_trace, reference_trace):
    text = report(candidate_trace, reference_trace)

    assert "starts at norm.output · activation · step 0 · micro-batch 0" in text


@pytest.mark.trainsafe(loop_programs.split, **AT, args={"annotated": False})
def test_the_missing_annotation_of_a_split_batch_dimension_is_proposed(
    candidate_trace, reference_trace
):
    text = report(candidate_trace, reference_trace)

    assert 'modules: "*": {output: {dp_dim: 0}}' in text


@pytest.mark.trainsafe(loop_programs.split, **AT, args={"annotated": False, "declared": False})
def test_micro_batches_with_equal_numbers_and_different_data_on_dp_ranks_are_reported(
    candidate_trace, reference_trace
):
    text = report(candidate_trace, reference_trace)

    assert "ranks 0 and 1 of dp computed micro-batches 0, 1 of step 0 from different data" in text
    assert "order='split'" in text
    assert "level='step'" in text


@pytest.mark.trainsafe(loop_programs.whole_steps, **AT)
def test_a_loop_without_micro_batches_is_compared_by_whole_steps(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(loop_programs.whole_steps, **AT, candidate_args={"fault": "reduction"})
def test_a_missing_reduction_is_found_in_whole_steps(candidate_trace, reference_trace, localizing):
    text = report(candidate_trace, reference_trace)

    assert "starts at 0.bias · main_grad · step 0" in text
    assert "not localised the loss agrees; only whole steps were compared" in text
    at = text.partition("look at ")[2]
    assert at.startswith("loop_programs.py:") or "/loop_programs.py:" in at.partition("(")[0]
    assert "(all_reduce(SUM) over dp" in at
    assert "module class" not in text


@pytest.mark.trainsafe(loop_programs.whole_steps, **AT, candidate_args={"fault": "rate"})
def test_a_wrong_learning_rate_is_found_in_whole_steps(
    candidate_trace, reference_trace, localizing
):
    text = report(candidate_trace, reference_trace)

    assert "starts at 0.weight · update · step 0" in text
    assert "faulty every gradient that the optimizer receives agrees; the optimizer's step" in text
    assert "(AdamW is constructed) steps the optimizer at" in text.partition("look at ")[2]
    assert "module class" not in text


@pytest.mark.trainsafe(loop_programs.strided, **AT)
def test_micro_batches_strided_over_dp_ranks_pass(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(loop_programs.strided, **AT, candidate_args={"order": "contiguous"})
def test_a_declared_order_that_is_not_the_order_of_the_data_is_reported(
    candidate_trace, reference_trace
):
    """Rank 0 computes the data of micro-batches 0 and 2, and numbers them 0 and 1."""
    text = report(candidate_trace, reference_trace)

    assert "starts at input.0 · input · step 0 · micro-batch 1" in text
    assert "it equals the reference's input of micro-batch 2" in text
