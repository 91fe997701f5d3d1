"""torchtitan's Llama under a schedule of torch.distributed.pipelining."""

from __future__ import annotations

import pytest

from tests.support.third_party import titan_pipeline
from tests.support.third_party.lane import failure, judge, line_of, needs_packages, starts

pytestmark = [needs_packages, pytest.mark.slow]


@pytest.mark.trainsafe(titan_pipeline.train, pp=2, dtype="float32")
def test_a_torchtitan_pipeline_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(titan_pipeline.train, pp=2, dtype="float64", args={"steps": 1})
def test_gradients_that_the_schedule_divides_again_are_located(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="scaled")
    quarter = "the value is 0.25 times the reference, which equals 1/micro-batches"
    at = starts(text, "tok_embeddings.weight · main_grad · step 0", quarter, "by the same factor")
    assert at == line_of(titan_pipeline, "schedule.step(ids)")


@pytest.mark.trainsafe(titan_pipeline.train, pp=2, dtype="float64", args={"steps": 1})
def test_a_block_without_its_residual_connections_is_located(
    candidate_trace, reference_trace, localizing
):
    text = failure(candidate_trace, reference_trace, fault="no residual")
    first = "layers.1.ffn_norm.output · activation · step 0 · micro-batch 0"
    never = "layers.1.ffn_norm (class RMSNorm) is never called; the reference calls it"
    at = starts(text, first, "the module is never called", never)
    assert at == line_of(
        titan_pipeline, "block.forward = lambda x, *args, **named: block.attention("
    )
