"""Every planted bug of the catalogue is located in the code that has it, with its axis."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.reference_models import bugs, gpt, moe

PROGRAMS = {"gpt": gpt.train, "moe": moe.train}

pytestmark = pytest.mark.slow


def planted(name, **axes):
    bug = bugs.find(name)
    arguments = dict(bug.arguments)
    return pytest.mark.trainsafe(
        PROGRAMS[bug.program], args=arguments, candidate_args={**arguments, "bug": name}, **axes
    )


def check(search, name, axis=""):
    """Assert the phase and targets of the catalogue, and how the sentence on the axis begins.

    Returns the last parts of the targets' names.
    """
    found = search()
    rung = found.rewritten()
    _, faults = found.judge(rung)
    pairs = [(fault.phase, fault.target) for fault in faults]
    assert bugs.find(name).localised(pairs), pairs
    sentence = found.axis(faults, rung).text if axis else ""
    assert sentence.startswith(axis)
    return {target.rpartition(".")[2] for _, target in pairs}


@planted("tp-embedding-mask", tp=2, cp=2)
def test_a_wrong_embedding_mask_is_located_in_the_forward_of_the_embedding(search):
    axis = "tp: at tp=1 the fault is gone, at cp=1 it is still there"
    check(search, "tp-embedding-mask", axis)


@planted("recompute-chunk-input", recompute="full", pp=[1, 2])
def test_a_wrong_input_of_a_recomputed_chunk_is_located_in_the_decoder(search):
    check(search, "recompute-chunk-input", "recompute:")


@planted("cp-loss-scaling", cp=2, pp=[1, 2])
def test_a_wrong_scale_of_the_loss_is_located_outside_the_model(search):
    check(search, "cp-loss-scaling", "cp:")


@planted("moe-router-grads", tp=2, sp=True)
def test_unreduced_router_gradients_are_located_as_weight_gradients(search):
    check(search, "moe-router-grads", "sp:")


@planted("fp8-amax-group", tp=2)
def test_a_wrong_fp8_scale_is_located_in_the_linear_layers(search):
    found = check(search, "fp8-amax-group", "tp:")
    assert found == {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}


@planted("fp8-stale-weight", recompute="full")
def test_stale_fp8_weights_are_located_in_the_linear_layers(search):
    check(search, "fp8-stale-weight")


@planted("tp-overlap-dgrad", tp=2, pp=[1, 2])
def test_wrong_overlapped_input_gradients_are_located_in_column_parallel_layers(search):
    found = check(search, "tp-overlap-dgrad", "tp:")
    assert found == {"output_layer", "linear_qkv", "linear_fc1"}


@planted("sp-layernorm-grads", tp=2, sp=True)
def test_unreduced_layer_norm_gradients_are_located_as_weight_gradients(search):
    check(search, "sp-layernorm-grads")


@planted("cp-attention-backward-layout", cp=2)
def test_a_wrong_gradient_layout_is_located_in_the_backward_of_attention(search):
    check(search, "cp-attention-backward-layout")


@planted("cp-layernorm-grads", tp=2, cp=2)
def test_gradients_summed_over_replicas_are_located_in_the_gradient_reduction(search):
    axis = "tp and cp together: the fault needs both; without tp or without cp it is gone"
    check(search, "cp-layernorm-grads", axis)


@planted("dp-gradient-scaling", cp=2)
def test_buckets_scaled_twice_are_located_in_the_reduction_of_all_parameters(search):
    found = check(search, "dp-gradient-scaling", "cp:")
    assert found == {"weight", "bias"}


@planted("zero-tied-embedding", pp=2, dp=2, zero=1)
def test_a_tied_embedding_in_two_buckets_is_located_in_its_gradient_reduction(search):
    check(search, "zero-tied-embedding")


@planted("zero-gather-lost", dp=2, zero=1)
def test_parameters_that_are_not_gathered_are_located_in_the_optimizer_step(search):
    check(search, "zero-gather-lost", "zero: at zero=0 the fault is gone")


@planted("pp-stage-division", pp=2, dtype=["float64"])
def test_layers_on_no_stage_are_located_in_the_initial_parameters(
    candidate_trace, reference_trace, localizing, published
):
    with pytest.raises(TrainsafeFailure):
        assert_trainsafe(candidate_trace, reference_trace)
    summary = published()
    assert bugs.find("pp-stage-division").localised(summary["faults"])
    assert summary["faults"] == [["initial", "decoder.layers.4"]]
