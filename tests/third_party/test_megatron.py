"""megatron-core on a CPU: clean programs pass, planted bugs are located in their code."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-third-party")

from tests.support.third_party import megatron_gpt
from tests.support.third_party.lane import code_at, failure, judge, starts


@pytest.mark.trainsafe(megatron_gpt.train, tp=[1, 2], sp=[False, True], pp=[1, 2])
def test_megatron_trains_like_one_device(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(megatron_gpt.train, dp=[2], zero=[0, 1])
def test_megatron_data_parallel_trains_like_one_device(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


ONE = {"steps": 1}


SUMS = "the ranks of tp hold partial sums: rank0 + rank1 equals the reference"


@pytest.mark.trainsafe(megatron_gpt.train, tp=2, sp=True, args=ONE)
def test_a_layer_norm_without_its_sequence_parallel_attribute_is_located(
    candidate_trace, reference_trace, localizing
):
    """megatron-core sums over tp only gradients of parameters with this attribute."""
    text = failure(candidate_trace, reference_trace, bug="norm_without_mark")
    first = "decoder.final_layernorm.weight · param_grad · step 0 · micro-batch 0"
    starts(text, first, SUMS, "decoder.final_layernorm.weight are wrong: they are not summed over")
    file, line = code_at(text)
    assert file == "finalize_model_grads.py"
    assert "all_reduce(" in line


@pytest.mark.trainsafe(megatron_gpt.train, tp=2, args=ONE)
def test_an_unreduced_input_gradient_is_located(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, bug="input_gradient")
    first = "decoder.layers.1.input_layernorm.output · activation_grad · step 0 · micro-batch 0"
    backward = "the backward of decoder.layers.1.self_attention.linear_qkv"
    starts(text, first, SUMS, backward)
    assert code_at(text) == ("layers.py", "class ColumnParallelLinear(torch.nn.Module):")


@pytest.mark.trainsafe(megatron_gpt.train, dp=2, args=ONE)
def test_a_gradient_reduction_that_does_not_average_is_located(
    candidate_trace, reference_trace, localizing
):
    """Clipping hides the factor in the main gradients, so the gradient norm shows it first."""
    text = failure(candidate_trace, reference_trace, bug="mean_over_dp")
    twice = "the value is 2 times the reference, a factor of dp so a division by dp is missing"
    starts(text, "grad_norm · grad_norm · step 0", twice)
    assert code_at(text)[0] == "param_and_grad_buffer.py"
