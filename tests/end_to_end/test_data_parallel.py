"""Programs under torch's data parallel wrappers pass as they are, and their mistakes are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wrapped_program import train

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure


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
def test_a_loss_that_undoes_the_mean_is_right(candidate_trace, reference_trace):
    """Each rank's loss is its part of the whole step's, times dp or summed by the wrapper."""
    judge(candidate_trace, reference_trace, norm=False, share=False, times=2)
    for way in ("hook", "fsdp sums"):
        judge(candidate_trace, reference_trace, norm=False, way=way, share=False)


@pytest.mark.trainsafe(train, dp=2, dtype="float64", args={"norm": False})
def test_a_wrong_scale_is_found_behind_clipping(candidate_trace, reference_trace):
    """Nobody reports the norm, so only gradients from before the reduction show it."""
    for way, share, times in (
        ("ddp", False, "0.5"),
        ("fsdp", False, "0.5"),
        ("fsdp sums", True, "2"),
    ):
        text = report(candidate_trace, reference_trace, norm=False, way=way, share=share)
        assert "starts at 2.output · activation_grad · step 0 · micro-batch 0" in text
        assert f"the value is {times} times the reference, a factor of" in text


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_a_mean_by_hand_is_offered_where_the_norm_shows_it(candidate_trace, reference_trace):
    offered = "gradients: {mean: [dp]}"
    assert offered in report(candidate_trace, reference_trace, way="by hand")
    annotations = {"gradients": {"mean": ["dp"]}}
    judge(candidate_trace, reference_trace, way="by hand", annotations=annotations)
    text = report(candidate_trace, reference_trace, way="by hand, undivided")
    assert offered not in text
    assert "a division by dp is missing" in text


@pytest.mark.trainsafe(train, dp=2, dtype="float64", args={"norm": False})
def test_a_mean_by_hand_shows_before_clipping_though_no_norm_is_reported(
    candidate_trace, reference_trace
):
    text = report(candidate_trace, reference_trace, norm=False, way="by hand")
    assert "gradients: {mean: [dp]}" in text
