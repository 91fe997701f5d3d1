"""Sweeps of minutes: the techniques and their bugs at every Point of up to four ranks."""

import pytest
from planted import judge, planted

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt

pytestmark = pytest.mark.slow


@pytest.mark.trainsafe(
    gpt.train, tp=[1, 2], cp=[1, 2], sp=[False, True], args={"fp8": True}, dtype=["bfloat16"]
)
def test_fp8_trains_like_one_device_in_every_dtype(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    gpt.train,
    tp=2,
    cp=2,
    sp=True,
    recompute=["none", "full", "selective"],
    cp_method=["all_gather", "ring"],
    tp_overlap=[False, True],
    args={"fp8": True},
)
def test_all_techniques_go_together(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@planted("recompute-chunk-input", recompute=["none", "full", "selective"], tp=[1, 2], cp=[1, 2])
def test_a_chunk_that_starts_over(trainsafe, candidate_trace, reference_trace):
    judge("recompute-chunk-input", trainsafe, candidate_trace, reference_trace)


@planted("tp-overlap-dgrad", tp=[1, 2], sp=[False, True], cp=[1, 2])
def test_an_unreduced_input_gradient(trainsafe, candidate_trace, reference_trace):
    judge("tp-overlap-dgrad", trainsafe, candidate_trace, reference_trace)


@planted("cp-attention-backward-layout", tp=[1, 2], cp=[1, 2, 4])
def test_a_misread_attention_gradient(trainsafe, candidate_trace, reference_trace):
    judge("cp-attention-backward-layout", trainsafe, candidate_trace, reference_trace)


@planted("cp-layernorm-grads", tp=[1, 2], cp=[1, 2], sp=[False, True])
def test_layer_norm_gradients_summed_over_replicas(trainsafe, candidate_trace, reference_trace):
    judge("cp-layernorm-grads", trainsafe, candidate_trace, reference_trace)


@planted("fp8-amax-group", tp=[1, 2, 4], cp=[1, 2], sp=[False, True])
def test_scales_of_each_rank(trainsafe, candidate_trace, reference_trace):
    judge("fp8-amax-group", trainsafe, candidate_trace, reference_trace)


@planted("fp8-stale-weight", recompute=["none", "full", "selective"], tp=[1, 2], cp=[1, 2])
def test_a_stale_weight(trainsafe, candidate_trace, reference_trace):
    judge("fp8-stale-weight", trainsafe, candidate_trace, reference_trace)
