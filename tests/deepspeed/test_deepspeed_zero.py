"""DeepSpeed's ZeRO stages train as plain PyTorch does, without an annotation."""

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import deepspeed_gpt

pytest.importorskip("deepspeed")


@pytest.mark.trainsafe(deepspeed_gpt.train, zero=[0, 1, 2, 3], dp=2)
def test_every_stage_trains_like_plain_torch(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(deepspeed_gpt.train, zero=[1, 3], dp=2, dtype="bfloat16")
def test_every_stage_trains_like_plain_torch_in_bfloat16(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow  # four ranks
@pytest.mark.trainsafe(deepspeed_gpt.train, zero=3, tp=2, dp=2, dtype="bfloat16")
def test_tensor_parallel_layers_need_no_annotation(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow  # four ranks
@pytest.mark.trainsafe(deepspeed_gpt.pipeline, pp=2, zero=1, dp=2, dtype="bfloat16")
def test_the_layers_of_a_pipeline_are_known_by_their_numbers(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(deepspeed_gpt.ulysses, cp=2, zero=1)
def test_sequence_parallel_ranks_are_those_of_cp(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(deepspeed_gpt.moe, dp=2, ep=2, zero=1)
def test_experts_have_the_numbers_of_the_whole_model(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(deepspeed_gpt.ulysses, cp=2, zero=3, ulysses_loss="documented")
def test_the_loss_that_deepspeed_documents_for_ulysses_is_right_at_stage_3(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)
