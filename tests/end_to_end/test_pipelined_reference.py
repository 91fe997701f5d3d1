"""Faults are located against a pipeline-parallel reference as against a single device."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.trace.facts import Cast, CollectiveEvent

SMALL = {"layers": 3, "hidden": 32, "batch_size": 1, "tied": True}
PIPELINE = {"pp": 2, "schedule": "torch-gpipe"}


@pytest.mark.trainsafe(gpt.train, tp=2, sp=True, args=SMALL, reference=PIPELINE)
def test_a_correct_tp_candidate_passes_against_a_pipeline_parallel_reference(
    trainsafe, candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)

    reference = reference_trace.at("float32")
    assert reference.sizes["pp"] == len(reference.ranks) == 2
    assert reference_trace.at("float64").ranks[1].events_of(Cast) == []


@pytest.mark.trainsafe(gpt.train, tp=2, sp=True, args=SMALL, reference=PIPELINE, dtype=["float64"])
def test_collectives_and_point_to_point_calls_of_every_rank_are_recorded(
    candidate_trace, reference_trace
):
    called = [
        [
            (call.op, call.shape, call.step, call.microbatch)
            for call in rank.events_of(CollectiveEvent)
        ]
        for rank in candidate_trace.at("float64").ranks
    ]
    assert called[0] == called[1]
    assert ("reduce_scatter_tensor", (32, 1, 32), 0, 0) in called[0]

    first, second = (
        [call for call in rank.events_of(CollectiveEvent) if call.peer is not None]
        for rank in reference_trace.at("float64").ranks
    )
    sent = [(call.step, call.shape) for call in first if call.op == "send"]
    assert sent
    assert sent == [(call.step, call.shape) for call in second if call.op == "recv"]
    assert all(call.ranks == (0, 1) and call.peer == 1 for call in first)


@pytest.mark.trainsafe(
    gpt.train,
    tp=2,
    sp=True,
    args=SMALL,
    candidate_args={"bug": "sp-layernorm-grads"},
    reference=PIPELINE,
    dtype=["float64"],
)
def test_a_planted_bug_is_located_against_a_pipeline_parallel_reference(
    candidate_trace, reference_trace, localizing
):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert "differs from its reference at pp=2" in text
    assert "starts at decoder.final_layernorm.weight · param_grad · step 0 · micro-batch 0" in text
    assert "the ranks of tp hold partial sums: rank0 + rank1" in text
    assert "faulty the forward and the backward of every module agree" in text
    assert "they are not summed over tp" in text
