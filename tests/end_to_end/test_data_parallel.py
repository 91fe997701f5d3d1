"""Programs under torch's data parallel wrappers pass unannotated, and their faults are found."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.models.wrapped_program import train


def judge(candidate, reference, **arguments):
    """Judge the candidate with these arguments, which the reference does not get."""
    candidate.case = replace(candidate.case, candidate_arguments=arguments)
    assert_trainsafe(candidate, reference)


def report(candidate, reference, **arguments):
    with pytest.raises(TrainsafeFailure) as failure:
        judge(candidate, reference, **arguments)
    return " ".join(str(failure.value).split())


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_clean_programs_pass_without_annotations(candidate_trace, reference_trace):
    for way in ("ddp", "inside", "fsdp"):
        judge(candidate_trace, reference_trace, way=way)


@pytest.mark.trainsafe(train, dp=2, dtype="float64", args={"norm": False})
def test_a_loss_scaled_to_match_the_wrappers_reduction_passes(candidate_trace, reference_trace):
    """Each rank divides its loss by the number of micro-batches of all ranks.

    The loss is multiplied by dp where the wrapper averages gradients, and is not where it sums.
    """
    judge(candidate_trace, reference_trace, norm=False, share=False, times=2)
    for way in ("hook", "fsdp sums"):
        judge(candidate_trace, reference_trace, norm=False, way=way, share=False)


@pytest.mark.trainsafe(train, dp=2, dtype="float64", args={"norm": False})
def test_a_wrong_loss_scale_is_found_although_gradients_are_clipped(
    candidate_trace, reference_trace
):
    """No gradient norm is reported: only activation gradients show the scale, before clipping."""
    for way, share, times in (
        ("ddp", False, "0.5"),
        ("fsdp", False, "0.5"),
        ("fsdp sums", True, "2"),
    ):
        text = report(candidate_trace, reference_trace, norm=False, way=way, share=share)
        assert "starts at 2.output · activation_grad · step 0 · micro-batch 0" in text
        assert f"the value is {times} times the reference, which equals " in text


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_a_mean_annotation_is_suggested_only_if_gradients_are_averaged_by_hand(
    candidate_trace, reference_trace
):
    suggestion = "gradients: {mean: [dp]}"
    assert suggestion in report(candidate_trace, reference_trace, way="by hand")
    annotations = {"gradients": {"mean": ["dp"]}}
    judge(candidate_trace, reference_trace, way="by hand", annotations=annotations)
    text = report(candidate_trace, reference_trace, way="by hand, undivided")
    assert suggestion not in text
    assert (
        "a division by dp is missing, or a sum over dp counts replicas; if the size matches" in text
    )


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_a_gradient_that_is_summed_twice_has_both_lines(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace, way="by hand, undivided", share=False)
    text = report(candidate_trace, reference_trace, way="by hand, twice", share=False)
    assert "the value is 2 times the reference, a factor of dp" in text
    lines = r"\S*wrapped_program.py:\d+"
    assert re.search(f"the gradient is summed over dp twice, at {lines} and {lines} ", text)


@pytest.mark.trainsafe(train, dp=2, dtype="float64", args={"norm": False})
def test_ranks_that_all_train_every_micro_batch_are_told_to_divide_them(
    candidate_trace, reference_trace
):
    way = "by hand, all batches"
    text = report(candidate_trace, reference_trace, norm=False, way=way, share=False)
    assert "ranks 0 and 1 of dp saw the same data: each trains all 4 micro-batches" in text
    assert "so each rank of dp must train its own share of the micro-batches" in text
    assert text.count("saw the same data") == 1


@pytest.mark.trainsafe(train, dp=2, dtype="float64", args={"norm": False, "limit": 100.0})
def test_another_limit_of_the_clip_is_not_taken_for_a_wrong_norm(
    candidate_trace, reference_trace, localizing
):
    text = report(candidate_trace, reference_trace, norm=False, limit=50.0)
    assert "the candidate clips its gradients at a norm of 50.0, the reference at 100.0" in text
    assert "so the limit of the clip is another one" in text
    assert "the gradients are right, and clipped at a norm of 50.0 instead of 100.0" in text
    assert "(changes gradients by _foreach_mul_)" in text


@pytest.mark.trainsafe(train, dp=2, dtype="float64", args={"norm": False})
def test_a_mean_annotation_is_suggested_even_if_no_gradient_norm_is_reported(
    candidate_trace, reference_trace
):
    text = report(candidate_trace, reference_trace, norm=False, way="by hand")
    assert "gradients: {mean: [dp]}" in text


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_division_after_a_wrappers_reduction_is_named_instead_of_the_wrapper(
    candidate_trace, reference_trace, localizing, way
):
    text = report(candidate_trace, reference_trace, way=way, divided=3)
    assert "are changed between their backward and the optimizer's step" in text
    assert "(changes gradients by div_)" in text
    assert "is applied here" not in text
