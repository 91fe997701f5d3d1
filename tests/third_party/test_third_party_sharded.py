"""FSDP2, and tensor parallelism by the plans of transformers and of torchtitan."""

from __future__ import annotations

import pytest

from tests.support.third_party import fsdp_llama, titan, transformers_tp
from tests.support.third_party.lane import (
    code_at,
    failure,
    judge,
    line_of,
    needs_packages,
    starts,
    suggested,
)

pytestmark = [needs_packages, pytest.mark.slow]

#: The annotations that the report on a program without annotations suggests.
LLAMA = {
    "modules": {
        name: {"output": {"tp_dim": -1}}
        for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "act_fn", "up_proj")
    }
}
TITAN = {
    "modules": {
        **{
            name: {"output": {"sp_dim": 1}}
            for name in ("tok_embeddings", "inner_attention", "wo", "attention", "w2")
        },
        "feed_forward": {"output": {"sp_dim": 1}},
        "layers.[0-9]": {"output": {"sp_dim": 1}},
        **{name: {"output": {"tp_dim": -1}} for name in ("wq", "wk", "wv", "w1", "w3")},
    }
}


#: The same for a mixture of experts, whose experts are sharded over tp as well.
MOE = {"modules": {name: {"output": {"tp_dim": -1}} for name in ("q_proj", "k_proj", "v_proj")}}
MOE["modules"]["experts.act_fn"] = {"output": {"tp_dim": -1}}

#: The line that calls torchtitan to apply `fully_shard`.
APPLIED = 'apply_fsdp(network, ctx.mesh["dp"], ctx.dtype, ctx.dtype, pp_enabled=False)'

ONE = {"steps": 1}
ONE_MOE = {"model": "qwen2_moe", **ONE}

FIRST = "output.loss · activation_grad · step 0 · micro-batch 0"
HALVED = "the value is 0.5 times the reference, which equals 1/micro-batches or 1/tp"
DIFFERENTIATED = "the loss that transformers_tp.train differentiates is wrong"
BACKWARD = "(loss / divisor).backward()"
HALF = "the value is 0.5 times the reference, a factor of 1/"
TWICE = "the value is 2 times the reference, a factor of "
#: The same on a fault that is planted at tp=1 too, so tp is not blamed.
DOUBLED = "the value is 2 times the reference, which equals micro-batches"


@pytest.mark.trainsafe(fsdp_llama.train, dp=2, dtype="float32")
def test_llama_under_fsdp2_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(fsdp_llama.train, dp=2, dtype="float64", args=ONE)
def test_gradients_summed_instead_of_averaged_are_located_under_fsdp2(
    candidate_trace, reference_trace, localizing
):
    """Clipping hides the factor from the optimizer, and no gradient norm is reported."""
    text = failure(candidate_trace, reference_trace, fault="summed")
    first = "output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, f"{TWICE}dp so a division by dp is missing")
    assert at == line_of(fsdp_llama, BACKWARD)


@pytest.mark.trainsafe(fsdp_llama.train, dp=2, dtype="float64", args=ONE)
def test_a_loss_divided_twice_is_located_under_fsdp2(candidate_trace, reference_trace, localizing):
    text = failure(candidate_trace, reference_trace, fault="divided twice")
    first = "output.loss · activation_grad · step 0 · micro-batch 0"
    at = starts(text, first, f"{HALF}dp", "fsdp_llama.train differentiates is wrong")
    assert at == line_of(fsdp_llama, BACKWARD)


@pytest.mark.trainsafe(transformers_tp.train, tp=2, dtype="float32")
def test_tensor_parallel_llama_passes_with_the_suggested_annotations(
    candidate_trace, reference_trace
):
    annotations = suggested(failure(candidate_trace, reference_trace))
    judge(candidate_trace, reference_trace, annotations=annotations)


@pytest.mark.trainsafe(transformers_tp.train, tp=2, dtype="float64", args=ONE)
def test_a_sum_that_counts_replicas_is_located_in_tensor_parallel_llama(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, annotations=LLAMA, fault="doubled")
    first = "model.layers.1.mlp.down_proj.output · activation · step 0 · micro-batch 0"
    at = starts(text, first, DOUBLED, "the forward of model.layers.1.mlp.down_proj")
    assert at == line_of(transformers_tp, "summing.forward = lambda *args: forward(*args) * 2")


@pytest.mark.trainsafe(transformers_tp.train, tp=2, dtype="float64", args=ONE)
def test_a_loss_divided_by_tp_is_located_in_tensor_parallel_llama(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, annotations=LLAMA, fault="divided")
    at = starts(text, FIRST, HALVED, DIFFERENTIATED)
    assert at == line_of(transformers_tp, BACKWARD)


@pytest.mark.trainsafe(transformers_tp.train, tp=2, dtype="float64", args=ONE)
def test_replicas_that_differ_are_located_in_tensor_parallel_llama(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, annotations=LLAMA, fault="unequal")
    first = "model.layers.1.input_layernorm.output · activation · step 0 · micro-batch 0"
    wrong = "on tp rank 1: the value is 1.01 times the reference"
    at = starts(text, first, wrong, "its parameters have changed since the step began")
    write = "network.model.layers[1].input_layernorm.weight.mul_(1.01)"
    assert code_at(text) == (at.partition(":")[0], f"{write}  # type: ignore[union-attr, index]")


@pytest.mark.trainsafe(
    transformers_tp.train, tp=2, dtype="float32", model=["qwen2_moe", "qwen2_moe, grouped"]
)
def test_tensor_parallel_qwen2_moe_passes_with_the_suggested_annotations(
    candidate_trace, reference_trace
):
    annotations = suggested(failure(candidate_trace, reference_trace))
    judge(candidate_trace, reference_trace, annotations=annotations)


@pytest.mark.trainsafe(transformers_tp.train, tp=2, dtype="float32", args=ONE_MOE)
def test_experts_summed_twice_are_located_in_tensor_parallel_qwen2_moe(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, annotations=MOE, fault="doubled")
    first = "model.layers.1.mlp.experts.output · activation · step 0 · micro-batch 0"
    between = "the forward of model.layers.1.mlp.experts (class Qwen2MoeExperts"
    at = starts(text, first, DOUBLED, between)
    assert at == line_of(transformers_tp, "summing.forward = lambda *args: forward(*args) * 2")


@pytest.mark.trainsafe(transformers_tp.train, tp=2, dtype="float32", args=ONE_MOE)
def test_a_loss_divided_by_tp_is_located_in_tensor_parallel_qwen2_moe(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, annotations=MOE, fault="divided")
    at = starts(text, FIRST, HALVED, DIFFERENTIATED)
    assert at == line_of(transformers_tp, BACKWARD)


@pytest.mark.trainsafe(titan.train, dp=2, dtype="float32")
def test_torchtitan_with_dp_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(titan.train, dp=2, dtype="float64", args=ONE)
def test_a_loss_averaged_over_a_ranks_own_samples_is_located_in_torchtitan_with_dp(
    candidate_trace, reference_trace, localizing
):
    """FSDP2 sums gradients here, so a loss averaged over a rank's samples is dp times too large."""
    text = failure(candidate_trace, reference_trace, fault="averaged")
    at = starts(text, "loss · loss · step 0 · micro-batch 0", f"{TWICE}dp")
    assert at == line_of(
        titan, "loss = cross_entropy(logits.flatten(0, 1), ids.flatten()) / divisor"
    )


@pytest.mark.trainsafe(titan.train, dp=2, dtype="float64", args=ONE)
def test_missing_gradient_synchronisation_is_located_in_torchtitan_with_dp(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="never synchronised")
    none = "the gradient reduction of all 21 parameters is wrong: the optimizer receives no"
    at = starts(text, "grad_norm · grad_norm · step 0", "every value is zero", none)
    assert at == line_of(titan, APPLIED)


@pytest.mark.trainsafe(titan.train, dp=2, tp=2, sp=True, dtype="float32")
def test_torchtitan_with_dp_and_tp_passes_with_the_suggested_annotations(
    candidate_trace, reference_trace
):
    annotations = suggested(failure(candidate_trace, reference_trace))
    judge(candidate_trace, reference_trace, annotations=annotations)


@pytest.mark.trainsafe(titan.train, dp=2, tp=2, sp=True, dtype="float64", args=ONE)
def test_a_loss_averaged_over_a_ranks_own_samples_is_located_in_torchtitan_with_dp_and_tp(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, annotations=TITAN, fault="averaged")
    at = starts(text, "loss · loss · step 0 · micro-batch 0", f"{TWICE}dp")
    assert at == line_of(
        titan, "loss = cross_entropy(logits.flatten(0, 1), ids.flatten()) / divisor"
    )


@pytest.mark.trainsafe(titan.train, dp=2, tp=2, sp=True, dtype="float64", args=ONE)
def test_replicas_that_differ_are_located_in_torchtitan_with_dp_and_tp(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, annotations=TITAN, fault="unequal")
    first = "layers.1.ffn_norm.output · activation · step 0 · micro-batch 0"
    wrong = "wrong only in rows 8-15 of 16 in dimension 1 (the part of tp rank 1)"
    at = starts(text, first, wrong, "its parameters have changed since the step began")
    assert at == line_of(titan, 'network.layers["1"].ffn_norm.weight.to_local().mul_(1.01)')
