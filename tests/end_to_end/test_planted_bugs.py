"""Each planted bug is found where its entry says, and only where it acts."""

from __future__ import annotations

from planted import judge, planted


@planted("tp-embedding-mask", tp=[1, 2], cp=2)
def test_a_wrong_embedding_mask_starts_at_the_embedding(
    trainsafe, candidate_trace, reference_trace
):
    judge("tp-embedding-mask", trainsafe, candidate_trace, reference_trace)


@planted("cp-loss-scaling", cp=[1, 2], dp=2)
def test_a_wrong_loss_scale_starts_at_the_loss_and_is_scaled_by_cp(
    trainsafe, candidate_trace, reference_trace
):
    judge("cp-loss-scaling", trainsafe, candidate_trace, reference_trace)


@planted("sp-layernorm-grads", tp=2, sp=[False, True])
def test_unreduced_layer_norm_gradients_are_partial_sums(
    trainsafe, candidate_trace, reference_trace
):
    judge("sp-layernorm-grads", trainsafe, candidate_trace, reference_trace)


@planted("recompute-chunk-input", recompute=["none", "full", "selective"])
def test_a_chunk_that_starts_over_shows_at_its_second_layer(
    trainsafe, candidate_trace, reference_trace
):
    judge("recompute-chunk-input", trainsafe, candidate_trace, reference_trace)


@planted("tp-overlap-dgrad", tp=2, sp=[False, True])
def test_an_unreduced_input_gradient_is_a_partial_sum(trainsafe, candidate_trace, reference_trace):
    judge("tp-overlap-dgrad", trainsafe, candidate_trace, reference_trace)


@planted("cp-attention-backward-layout", cp=[1, 2])
def test_a_misread_attention_gradient_shows_at_the_projection(
    trainsafe, candidate_trace, reference_trace
):
    judge("cp-attention-backward-layout", trainsafe, candidate_trace, reference_trace)


@planted("cp-layernorm-grads", tp=2, cp=[1, 2])
def test_layer_norm_gradients_summed_over_replicas_are_scaled_by_tp(
    trainsafe, candidate_trace, reference_trace
):
    judge("cp-layernorm-grads", trainsafe, candidate_trace, reference_trace)


@planted("pp-stage-division", pp=[1, 2])
def test_layers_that_no_stage_has_are_missing(trainsafe, candidate_trace, reference_trace):
    judge("pp-stage-division", trainsafe, candidate_trace, reference_trace)


@planted("moe-router-grads", tp=2, sp=[False, True])
def test_unreduced_router_gradients_are_partial_sums(trainsafe, candidate_trace, reference_trace):
    judge("moe-router-grads", trainsafe, candidate_trace, reference_trace)


@planted("dp-gradient-scaling", cp=[1, 2], dp=1)
def test_gradients_divided_by_too_few_ranks_are_scaled_by_cp(
    trainsafe, candidate_trace, reference_trace
):
    judge("dp-gradient-scaling", trainsafe, candidate_trace, reference_trace)


@planted("zero-gather-lost", dp=2, zero=[0, 1])
def test_parameters_that_are_gathered_and_never_copied_do_not_move(
    trainsafe, candidate_trace, reference_trace
):
    judge("zero-gather-lost", trainsafe, candidate_trace, reference_trace)


@planted("zero-tied-embedding", pp=2, dp=2, zero=1)
def test_copies_of_a_tied_embedding_that_are_cut_apart_are_found(
    trainsafe, candidate_trace, reference_trace
):
    judge("zero-tied-embedding", trainsafe, candidate_trace, reference_trace)


@planted("fp8-amax-group", tp=[1, 2], sp=[False, True], cp=2)
def test_scales_of_each_rank_show_at_the_first_fp8_layer(
    trainsafe, candidate_trace, reference_trace
):
    judge("fp8-amax-group", trainsafe, candidate_trace, reference_trace)


@planted("fp8-stale-weight", recompute=["none", "full"])
def test_a_stale_weight_shows_in_the_second_step(trainsafe, candidate_trace, reference_trace):
    judge("fp8-stale-weight", trainsafe, candidate_trace, reference_trace)
