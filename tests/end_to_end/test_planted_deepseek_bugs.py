"""Each bug of a DeepSeek is found at the tensor of its entry; other Points pass."""

from __future__ import annotations

from tests.support.end_to_end.planted import judge, planted


@planted("mla-latent-grads", tp=[1, 2], dtype="float64")
def test_an_unreduced_gradient_of_the_latent_vector_is_reported_as_a_partial_sum(
    trainsafe, candidate_trace, reference_trace
):
    judge("mla-latent-grads", trainsafe, candidate_trace, reference_trace)


@planted("mla-shared-key-grads", tp=2, dtype="float64")
def test_an_unreduced_gradient_of_the_key_of_all_heads_is_found_in_its_rows(
    trainsafe, candidate_trace, reference_trace
):
    judge("mla-shared-key-grads", trainsafe, candidate_trace, reference_trace)


@planted("mla-rope-blocks", tp=2, dtype="float64")
def test_rotated_elements_that_are_divided_wrongly_are_found_at_their_projection(
    trainsafe, candidate_trace, reference_trace
):
    judge("mla-rope-blocks", trainsafe, candidate_trace, reference_trace)


@planted("shared-expert-twice", tp=2, dtype="float64")
def test_a_shared_expert_that_is_summed_twice_is_reported_as_twice_too_large(
    trainsafe, candidate_trace, reference_trace
):
    judge("shared-expert-twice", trainsafe, candidate_trace, reference_trace)


@planted("router-bias-counts", tp=2, sp=[False, True], dtype="float64")
def test_biases_that_follow_local_choices_are_found_in_their_router(
    trainsafe, candidate_trace, reference_trace
):
    judge("router-bias-counts", trainsafe, candidate_trace, reference_trace)


@planted("router-bias-weights", dp=2, ep=[1, 2], dtype="float64")
def test_a_bias_in_the_weights_of_experts_is_found_in_the_second_step(
    trainsafe, candidate_trace, reference_trace
):
    judge("router-bias-weights", trainsafe, candidate_trace, reference_trace)


@planted("mtp-shift-local", cp=2, dtype="float64")
def test_targets_shifted_within_a_part_of_the_sequence_are_found_at_the_shift(
    trainsafe, candidate_trace, reference_trace
):
    judge("mtp-shift-local", trainsafe, candidate_trace, reference_trace)


@planted("mtp-loss-scale", cp=2, dtype="float64")
def test_a_further_loss_divided_by_cp_is_reported_with_its_factor(
    trainsafe, candidate_trace, reference_trace
):
    judge("mtp-loss-scale", trainsafe, candidate_trace, reference_trace)


@planted("mtp-embedding-grads", pp=2, dtype="float64")
def test_unsynchronised_copies_of_the_embedding_are_found_at_their_gradient(
    trainsafe, candidate_trace, reference_trace
):
    judge("mtp-embedding-grads", trainsafe, candidate_trace, reference_trace)
