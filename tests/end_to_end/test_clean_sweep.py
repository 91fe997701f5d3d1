"""A correct program passes at default settings, at every kind of Point, in every dtype.

A Point in bfloat16 is compared in float64 and in float32 too.
benchmarks/bench_clean.py covers every Point of up to four ranks.
"""

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.reference_models import cnn, deepseek, gpt, llama, lstm, moe


@pytest.mark.trainsafe(gpt.train, tp=[1, 2], cp=[1, 2])
def test_the_gpt_with_tp_and_cp_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    gpt.train,
    tp=2,
    cp=2,
    sp=True,
    recompute=["full", "selective"],
    args={"cp_method": "ring", "tp_overlap": True, "recompute_num_layers": 2},
)
def test_recomputation_ring_attention_and_tp_overlap_train_like_one_device(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(gpt.train, tp=2, cp=2, sp=True, args={"fp8": True}, dtype=["bfloat16"])
def test_the_fp8_gpt_trains_like_one_device_in_fp8(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(
    gpt.train,
    tp=2,
    cp=2,
    sp=True,
    recompute="full",
    args={"fp8": True, "tp_overlap": True, "cp_method": "ring"},
)
def test_fp8_recomputation_tp_overlap_and_ring_attention_combined_train_like_one_device(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, tp=2, sp=True, dp=[1, 2], dtype=["bfloat16"])
def test_the_gpt_trains_like_one_device_in_bfloat16(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, tp=2, cp=2, sp=True, dtype=["bfloat16"], layers=[6], seed=7)
def test_a_deeper_gpt_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(llama.train, tp=2, sp=True, cp=2, dtype=["bfloat16"])
def test_the_llama_trains_like_one_device_in_bfloat16(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(llama.train, tp=[1, 2], cp=[1, 2], dp=2)
def test_the_llama_with_dp_tp_and_cp_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(moe.train, dp=2, ep=2, args={"capacity_factor": 1.0})
def test_the_moe_with_ep_and_dp_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(deepseek.train, pp=2, dp=2, ep=2, dtype=["bfloat16"], args={"clip": 0.5})
def test_the_deepseek_with_stages_and_experts_over_ranks_trains_like_one_device(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(
    deepseek.train, tp=2, cp=2, sp=True, zero=[0, 1], dtype=["bfloat16"], recompute="selective"
)
def test_the_deepseek_with_tp_cp_and_sp_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(
    moe.train, tp=2, dtype=["bfloat16"], args={"layers": 1, "experts": 8, "batch_size": 4}
)
def test_expert_choices_changed_by_rounding_are_replayed_from_the_reference(
    candidate_trace, reference_trace
):
    decided = reference_trace.decided("bfloat16")
    turned = differing_choices(candidate_trace, reference_trace)

    assert reference_trace.decided("float64") is None
    assert decided is not None
    assert turned > 0
    assert_trainsafe(candidate_trace, reference_trace)


def differing_choices(candidate, reference):
    """The number of tokens that the bfloat16 candidate, without replay, sends to other experts."""
    own, theirs = candidate.at("bfloat16"), reference.at("bfloat16")
    turned = 0
    for id in theirs.ids():
        if id.kind == "decision" and id.name == "output":
            whole = [logical_tensor(trace, id).tensor for trace in (own, theirs)]
            sets = [tensor.sort().values for tensor in whole if tensor is not None]
            turned += int((sets[0] != sets[1]).any(dim=-1).sum())
    return turned


@pytest.mark.slow
@pytest.mark.trainsafe(moe.train, tp=2, cp=[1, 2], sp=True, dp=2, ep=2)
def test_the_moe_with_tp_cp_sp_dp_and_ep_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


DATA_PARALLEL = {
    "bucket": 10_000,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "clip": 0.5,
}


@pytest.mark.trainsafe(
    gpt.train, dp=2, zero=[0, 1], dtype=["bfloat16"], args={**DATA_PARALLEL, "microbatches": 4}
)
def test_gradient_buckets_with_and_without_zero_train_like_one_device(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(
    gpt.train,
    dp=2,
    zero=1,
    overlap_grad_reduce=False,
    overlap_param_gather=[False, True],
    dtype=["bfloat16"],
    args={"microbatches": 4, "layers": 1, "bucket": 10_000, "steps": 1},
)
def test_zero_without_overlapped_gradient_reduction_trains_like_one_device(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(
    gpt.train,
    dp=2,
    tp=2,
    cp=[1, 2],
    sp=True,
    zero=1,
    dtype=["bfloat16"],
    args={**DATA_PARALLEL, "clip": 0.0},
)
def test_zero_with_tp_cp_and_sp_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


SMALL = {**DATA_PARALLEL, "bucket": 1000, "steps": 1}
FOUR = {**DATA_PARALLEL, "microbatches": 4, "layers": 1}


@pytest.mark.trainsafe(cnn.train, dp=2, zero=1, args=SMALL)
def test_the_cnn_with_zero_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(lstm.train, dp=2, args=SMALL)
def test_the_lstm_with_dp_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, dp=4, zero=[0, 1], dtype=["bfloat16"], args=FOUR)
def test_the_gpt_over_four_dp_ranks_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(cnn.train, dp=4, zero=[0, 1], bucket=1000, dtype=["bfloat16"])
def test_the_cnn_over_four_dp_ranks_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(lstm.train, dp=4, zero=[0, 1], dtype=["bfloat16"])
def test_the_lstm_over_four_dp_ranks_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
