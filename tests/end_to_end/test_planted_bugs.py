"""Each planted bug is found at the tensor of its entry; Points that do not trigger it pass.

The first at default settings, the others in float64: test_clean_sweep.py has the whole ladder.
"""

from __future__ import annotations

from tests.support.end_to_end.planted import judge, planted


@planted("tp-embedding-mask", tp=[1, 2], cp=2)
def test_a_wrong_embedding_mask_is_found_at_the_embedding(
    trainsafe, candidate_trace, reference_trace
):
    judge("tp-embedding-mask", trainsafe, candidate_trace, reference_trace)


@planted("cp-loss-scaling", cp=[1, 2], dp=2, dtype="float64")
def test_a_wrong_loss_scale_is_found_at_the_loss_as_a_factor_of_cp(
    trainsafe, candidate_trace, reference_trace
):
    judge("cp-loss-scaling", trainsafe, candidate_trace, reference_trace)


@planted("sp-layernorm-grads", tp=2, sp=[False, True], dtype="float64")
def test_unreduced_layer_norm_gradients_are_reported_as_partial_sums(
    trainsafe, candidate_trace, reference_trace
):
    judge("sp-layernorm-grads", trainsafe, candidate_trace, reference_trace)


@planted("recompute-chunk-input", recompute=["none", "full", "selective"], dtype="float64")
def test_a_recomputed_layer_with_the_chunks_input_is_found_at_the_second_layer(
    trainsafe, candidate_trace, reference_trace
):
    judge("recompute-chunk-input", trainsafe, candidate_trace, reference_trace)


@planted("tp-overlap-dgrad", tp=2, sp=[False, True], dtype="float64")
def test_an_unreduced_input_gradient_is_reported_as_a_partial_sum(
    trainsafe, candidate_trace, reference_trace
):
    judge("tp-overlap-dgrad", trainsafe, candidate_trace, reference_trace)


@planted("cp-attention-backward-layout", cp=[1, 2], dtype="float64")
def test_an_attention_gradient_read_in_the_wrong_layout_is_found_at_the_projection(
    trainsafe, candidate_trace, reference_trace
):
    judge("cp-attention-backward-layout", trainsafe, candidate_trace, reference_trace)


@planted("cp-layernorm-grads", tp=2, cp=[1, 2], dtype="float64")
def test_layer_norm_gradients_summed_over_replicas_are_reported_as_twice_too_large(
    trainsafe, candidate_trace, reference_trace
):
    judge("cp-layernorm-grads", trainsafe, candidate_trace, reference_trace)


@planted("pp-stage-division", pp=[1, 2], dtype="float64")
def test_layers_in_no_pipeline_stage_are_reported_as_not_recorded(
    trainsafe, candidate_trace, reference_trace
):
    judge("pp-stage-division", trainsafe, candidate_trace, reference_trace)


@planted("moe-router-grads", tp=2, sp=[False, True], dtype="float64")
def test_unreduced_router_gradients_are_reported_as_partial_sums(
    trainsafe, candidate_trace, reference_trace
):
    judge("moe-router-grads", trainsafe, candidate_trace, reference_trace)


@planted("dp-gradient-scaling", cp=[1, 2], dp=1, dtype="float64")
def test_gradients_divided_by_too_few_ranks_are_reported_as_a_factor_of_cp(
    trainsafe, candidate_trace, reference_trace
):
    judge("dp-gradient-scaling", trainsafe, candidate_trace, reference_trace)


@planted("zero-gather-lost", dp=2, zero=[0, 1], dtype="float64")
def test_gathered_parameters_that_are_never_copied_are_found(
    trainsafe, candidate_trace, reference_trace
):
    judge("zero-gather-lost", trainsafe, candidate_trace, reference_trace)


@planted("zero-tied-embedding", pp=2, dp=2, zero=1, dtype="float64")
def test_tied_embedding_copies_with_different_zero_shards_are_found(
    trainsafe, candidate_trace, reference_trace
):
    judge("zero-tied-embedding", trainsafe, candidate_trace, reference_trace)


@planted("fp8-amax-group", tp=[1, 2], sp=[False, True], cp=2, dtype="float64")
def test_fp8_scales_that_differ_between_tp_ranks_are_found_at_the_first_fp8_layer(
    trainsafe, candidate_trace, reference_trace
):
    judge("fp8-amax-group", trainsafe, candidate_trace, reference_trace)


@planted("fp8-stale-weight", recompute=["none", "full"], dtype="float64")
def test_a_stale_fp8_weight_is_found_in_the_second_step(
    trainsafe, candidate_trace, reference_trace
):
    judge("fp8-stale-weight", trainsafe, candidate_trace, reference_trace)
