"""A correct program passes at default settings, at every kind of Point, in every dtype."""

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt, llama


@pytest.mark.trainsafe(gpt.train, tp=[1, 2], cp=[1, 2])
def test_the_gpt_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    gpt.train,
    tp=2,
    cp=2,
    sp=True,
    recompute=["full", "selective"],
    args={"cp_method": "ring", "tp_overlap": True, "recompute_num_layers": 2},
)
def test_recomputation_a_ring_and_overlap_change_nothing(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, tp=2, sp=True, dp=[1, 2], dtype=["bfloat16"])
def test_the_gpt_trains_like_one_device_in_bfloat16(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, tp=2, cp=2, sp=True, dtype=["bfloat16"], layers=[8], seed=7)
def test_a_deeper_gpt_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(llama.train, tp=2, sp=True, cp=2, dtype=["bfloat16"])
def test_the_llama_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(llama.train, tp=[1, 2], cp=[1, 2], sp=[False, True], dp=[1, 2])
def test_the_llama_trains_like_one_device_everywhere(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
