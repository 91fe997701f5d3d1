"""Every planted bug of the catalogue is traced to the code that has it, with the axis it needs."""

from __future__ import annotations

import pytest

from pytest_trainsafe.reference_models import bugs, gpt, moe

PROGRAMS = {"gpt": gpt.train, "moe": moe.train}

pytestmark = pytest.mark.slow


def planted(name, **axes):
    bug = bugs.find(name)
    arguments = dict(bug.arguments)
    return pytest.mark.trainsafe(
        PROGRAMS[bug.program], args=arguments, candidate_args={**arguments, "bug": name}, **axes
    )


def localised(search):
    """The phases and targets at fault, and the sentence on the axis."""
    found = search()
    rung = found.rewritten()
    _, faults = found.judge(rung)
    assert faults
    phases = {fault.phase for fault in faults}
    assert len(phases) == 1, faults
    return phases.pop(), {fault.target for fault in faults}, found.axis(faults, rung)


@planted("tp-embedding-mask", tp=2, cp=2)
def test_the_embedding_mask_is_the_embeddings(search):
    phase, targets, axis = localised(search)
    assert (phase, targets) == ("forward", {"embedding.word_embeddings"})
    assert axis == "tp: at tp=1 the fault is gone, at cp=1 it is still there"


@planted("recompute-chunk-input", recompute="full")
def test_the_input_of_a_recomputed_chunk_is_the_code_of_the_decoder(search):
    phase, targets, axis = localised(search)
    assert (phase, targets) == ("forward", {"decoder"})
    assert axis.startswith("recompute:")


@planted("cp-loss-scaling", cp=2)
def test_the_scale_of_the_loss_is_outside_of_the_model(search):
    phase, targets, axis = localised(search)
    assert (phase, targets) == ("backward", {"<program>"})
    assert axis.startswith("cp:")


@planted("moe-router-grads", tp=2, sp=True)
def test_unreduced_router_gradients_are_weight_gradients(search):
    phase, targets, axis = localised(search)
    assert (phase, targets) == ("weights", {"decoder.layers.0.mlp.router.weight"})
    assert axis.startswith("sp:")


@planted("fp8-amax-group", tp=2)
def test_the_scale_of_fp8_is_that_of_the_linear_layers(search):
    phase, targets, axis = localised(search)
    assert phase == "forward"
    assert {name.rpartition(".")[2] for name in targets} == {
        "linear_qkv",
        "linear_proj",
        "linear_fc1",
        "linear_fc2",
    }
    assert axis.startswith("tp:")


@planted("fp8-stale-weight", recompute="full")
def test_a_stale_weight_is_that_of_the_linear_layers(search):
    phase, targets, _ = localised(search)
    assert phase == "forward"
    assert all(".linear_" in name for name in targets)


@planted("tp-overlap-dgrad", tp=2)
def test_overlapped_input_gradients_are_the_backward_of_column_parallel_layers(search):
    phase, targets, axis = localised(search)
    assert phase == "backward"
    assert {name.rpartition(".")[2] for name in targets} == {
        "output_layer",
        "linear_qkv",
        "linear_fc1",
    }
    assert axis.startswith("tp:")


@planted("sp-layernorm-grads", tp=2, sp=True)
def test_unreduced_layer_norm_gradients_are_weight_gradients(search):
    phase, targets, _ = localised(search)
    assert phase == "weights"
    assert all("layernorm" in name for name in targets)


@planted("cp-attention-backward-layout", cp=2)
def test_the_ring_is_wrong_in_the_backward_of_attention(search):
    phase, targets, _ = localised(search)
    assert phase == "backward"
    assert {name.rpartition(".")[2] for name in targets} == {"core_attention"}


@planted("cp-layernorm-grads", tp=2, cp=2)
def test_gradients_summed_over_replicas_are_a_reduction(search):
    phase, targets, axis = localised(search)
    assert phase == "reduction"
    assert all("layernorm" in name for name in targets)
    assert axis == "tp and cp together: without any of them the fault is gone"


@planted("dp-gradient-scaling", cp=2)
def test_buckets_scaled_twice_are_a_reduction_of_everything(search):
    phase, targets, axis = localised(search)
    assert phase == "reduction"
    assert len(targets) > 20
    assert axis.startswith("cp:")


@planted("zero-tied-embedding", pp=2, dp=2, zero=1)
def test_a_tied_embedding_in_two_buckets_is_a_reduction_of_it_alone(search):
    phase, targets, _ = localised(search)
    assert (phase, targets) == ("reduction", {"embedding.word_embeddings.weight"})


@planted("zero-gather-lost", dp=2, zero=1)
def test_parameters_that_are_not_gathered_are_the_optimizers_step(search):
    phase, targets, axis = localised(search)
    assert phase == "optimizer"
    assert "embedding.word_embeddings.weight" in targets
    assert axis.startswith("zero: at zero=0 the fault is gone")
