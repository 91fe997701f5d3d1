"""torchtitan's Llama under a schedule of torch.distributed.pipelining."""

from __future__ import annotations

import pytest
import titan_pipeline
from lane import failure, flat, judge, needs_packages

pytestmark = [needs_packages, pytest.mark.slow]


@pytest.mark.trainsafe(titan_pipeline.train, pp=2, dtype="float32")
def test_a_pipeline_passes(candidate_trace, reference_trace):
    judge(candidate_trace, reference_trace)


@pytest.mark.trainsafe(titan_pipeline.train, pp=2, dtype="float64")
def test_gradients_that_the_schedule_divides_again(candidate_trace, reference_trace):
    text = flat(failure(candidate_trace, reference_trace, fault="scaled"))
    assert "starts at tok_embeddings.weight · main_grad · step 0" in text
    assert "the value is 0.25 times the reference, which is 1/micro-batches" in text


@pytest.mark.trainsafe(titan_pipeline.train, pp=2, dtype="float64")
def test_a_block_without_its_residual_connections(candidate_trace, reference_trace):
    text = flat(failure(candidate_trace, reference_trace, fault="no residual"))
    assert "starts at layers.1.ffn_norm.output · activation · step 0 · micro-batch 0" in text
