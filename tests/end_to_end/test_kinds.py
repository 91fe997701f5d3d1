"""Faults in gradient clipping, buffers and input data are found at the first tensor they change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.models.kinds_program import (
    at_the_boundary,
    clipped,
    late,
    normed,
    read,
)


def failure(candidate, reference) -> str:
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate, reference)
    return " ".join(str(failure.value).split())


def notes(published) -> str:
    return " ".join(published()["notes"])


@pytest.mark.trainsafe(clipped, dp=2, dtype="float64")
def test_a_program_that_clips_gradients_passes(candidate_trace, reference_trace, published):
    assert_trainsafe(candidate_trace, reference_trace)
    assert "not compared" not in notes(published)


@pytest.mark.trainsafe(clipped, dp=2, dtype="float64", args={"sharded": True})
def test_an_fsdp2_program_that_clips_gradients_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(clipped, dp=2, dtype="float64", candidate_args={"halved": True})
def test_gradients_divided_once_too_often_are_found_before_clipping(
    candidate_trace, reference_trace
):
    text = failure(candidate_trace, reference_trace)
    assert "starts at 0.weight · unclipped_grad · step 0" in text
    assert "the value is 0.5 times the reference, which equals 1/dp" in text


@pytest.mark.trainsafe(
    clipped,
    dp=2,
    dtype="float64",
    args={"sharded": True},
    candidate_args={"sharded": True, "halved": True},
)
def test_fsdp2_gradients_divided_once_too_often_are_found_before_clipping(
    candidate_trace, reference_trace
):
    text = failure(candidate_trace, reference_trace)
    assert "starts at 0.weight · unclipped_grad · step 0" in text
    assert "the value is 0.5 times the reference, which equals 1/dp" in text


@pytest.mark.trainsafe(clipped, dp=2, dtype="float64", args={"declared": False})
def test_a_mean_annotation_is_suggested_although_gradients_are_clipped(
    candidate_trace, reference_trace
):
    text = failure(candidate_trace, reference_trace)
    assert "the annotation `gradients: {mean: [dp]}` is missing" in text
    assert "differs from its single-device reference" not in text


@pytest.mark.trainsafe(clipped, dp=2, dtype="float64", candidate_args={"function": "value"})
def test_different_clipping_functions_of_candidate_and_reference_are_reported(
    candidate_trace, reference_trace
):
    text = failure(candidate_trace, reference_trace)
    assert "starts at 0.weight · main_grad · step 0" in text
    assert (
        "the candidate clips its gradients with clip_grad_value_, the reference with "
        "clip_grad_norm_"
    ) in text


@pytest.mark.trainsafe(late, dp=2, dtype="float64", candidate_args={"fault": True})
def test_a_fault_in_a_backward_outside_of_micro_batches_is_found_at_its_module(
    candidate_trace, reference_trace
):
    text = failure(candidate_trace, reference_trace)
    assert "starts at 0.output · activation_grad · step 0 · micro-batch 0" in text


@pytest.mark.trainsafe(normed, dp=2, dtype="float64")
def test_batch_norm_statistics_may_differ_between_dp_ranks(
    candidate_trace, reference_trace, published
):
    assert_trainsafe(candidate_trace, reference_trace)
    noted = notes(published)
    own = "norm.running_mean, norm.running_var, norm.num_batches_tracked, at least in part: it may"
    assert own in noted
    assert "buffer rank, at least in part: its initial values on rank 1 differ from the" in noted
    assert "average" not in noted
    assert "table" not in noted


@pytest.mark.trainsafe(normed, tp=2, dtype="float64", accept=["in-effect"])
def test_batch_norm_statistics_of_tp_ranks_are_not_noted_as_uncompared(
    candidate_trace, reference_trace, published
):
    assert_trainsafe(candidate_trace, reference_trace)
    assert "norm.running_mean" not in notes(published)


@pytest.mark.trainsafe(
    normed, tp=2, dtype="float64", candidate_args={"momentum": 0.9}, accept=["in-effect"]
)
def test_a_different_batch_norm_momentum_is_found_under_tp(candidate_trace, reference_trace):
    text = failure(candidate_trace, reference_trace)
    assert "starts at norm.running_mean · buffer · step 0 · micro-batch 0" in text
    assert "norm.running_mean, " not in text  # no note says that it was not compared


@pytest.mark.trainsafe(normed, dp=2, dtype="float64", candidate_args={"momentum": 0.9})
def test_a_different_batch_norm_momentum_is_found_under_dp(candidate_trace, reference_trace):
    text = failure(candidate_trace, reference_trace)
    assert "starts at norm.running_mean · buffer · step 0 · micro-batch 0" in text


@pytest.mark.parametrize("fault", ["drift", "average"])
@pytest.mark.trainsafe(normed, dp=2, dtype="float64")
def test_a_replicated_buffer_that_differs_on_one_rank_is_found(
    trainsafe, candidate_trace, reference_trace, fault
):
    candidate_trace.case = replace(trainsafe, candidate_arguments={"fault": fault})
    text = failure(candidate_trace, reference_trace)
    name = {"drift": "table", "average": "average"}[fault]
    assert f"starts at {name} · buffer · step 0 · float64" in text
    assert "replicas over dp differ" in text


@pytest.mark.trainsafe(read, dp=2, dtype="float64")
def test_equal_batches_add_no_note_on_uncompared_tensors(
    candidate_trace, reference_trace, published
):
    assert_trainsafe(candidate_trace, reference_trace)
    assert notes(published).count("not compared") == 1  # that the test trains one step


@pytest.mark.trainsafe(read, cp=2, dtype="float64", args={"local": True})
def test_positions_counted_within_a_cp_shard_pass_with_a_note(
    candidate_trace, reference_trace, published
):
    assert_trainsafe(candidate_trace, reference_trace)
    assert "the model's inputs input.1" in notes(published)


FAULTS = {
    "labels": ("input.2", "of 16 values differ from the reference's input"),
    "shuffled": ("input.0", "of 16 values differ from the reference's input"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.trainsafe(read, dp=2, dtype="float64")
def test_a_wrong_batch_is_found_at_the_models_input(
    trainsafe, candidate_trace, reference_trace, fault
):
    candidate_trace.case = replace(trainsafe, candidate_arguments={"fault": fault})
    text = failure(candidate_trace, reference_trace)
    tensor, difference = FAULTS[fault]
    assert f"starts at {tensor} · input · step 0 · micro-batch 0" in text
    assert difference in text
    assert "so the program passes different data to its model" in text


@pytest.mark.trainsafe(read, dp=2, dtype="float64", candidate_args={"fault": "same batch"})
def test_the_same_batch_on_all_dp_ranks_is_found_at_the_models_input(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace)
    assert "starts at input.0 · input · step 0 · micro-batch 2" in text
    assert "it equals the reference's input of micro-batch 0" in text
    assert "the data that kinds_program.read passes to its model is wrong" in text
    assert "given equal inputs" not in text


@pytest.mark.trainsafe(
    read, cp=2, dtype="float64", args={"local": True},
    candidate_args={"local": True, "fault": "tokens"},
)  # fmt: skip
def test_wrong_tokens_are_found_although_sequences_are_sharded_over_cp(
    candidate_trace, reference_trace
):
    text = failure(candidate_trace, reference_trace)
    assert "starts at input.0 · input · step 0 · micro-batch 0" in text


@pytest.mark.trainsafe(read, dp=2, dtype="float64", candidate_args={"fault": "model"})
def test_a_fault_in_the_loss_is_not_attributed_to_the_data(candidate_trace, reference_trace):
    text = failure(candidate_trace, reference_trace)
    assert "starts at loss · loss · step 0 · micro-batch 0" in text
    assert "input" not in text.replace("inputs of the model", "")


@pytest.mark.trainsafe(
    at_the_boundary,
    tp=2,
    dtype="float64",
    args={"steps": 1},
    candidate_args={"steps": 1, "wrong": True},
)
def test_an_off_by_one_vocabulary_mask_is_found_at_the_embedding(candidate_trace, reference_trace):
    text = failure(candidate_trace, reference_trace)
    assert (
        "starts at embedding.word_embeddings.output · activation · step 0 · micro-batch 0" in text
    )
