"""FSDP2 with an activation checkpoint wrapper passes, and lost gradients under it are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.models.checkpointed_program import train


def judge(candidate, reference, **arguments):
    """Judge the candidate with these arguments, which the reference does not get."""
    candidate.case = replace(candidate.case, candidate_arguments=arguments)
    assert_trainsafe(candidate, reference)


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_either_order_of_the_wrapper_and_fully_shard_passes(candidate_trace, reference_trace):
    for order in ("sharded outside", "wrapper outside"):
        for impl in ("NO_REENTRANT", "REENTRANT"):
            judge(candidate_trace, reference_trace, order=order, impl=impl)
        judge(candidate_trace, reference_trace, order=order, reshard=False)


@pytest.mark.trainsafe(train, tp=2, dp=2, dtype="float64")
def test_wrapped_blocks_that_are_sharded_over_tp_and_dp_pass(candidate_trace, reference_trace):
    for order in ("sharded outside", "wrapper outside"):
        judge(candidate_trace, reference_trace, order=order)


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_gradients_that_a_wrapped_block_loses_are_found(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        judge(candidate_trace, reference_trace, detached=True)
    text = " ".join(str(failure.value).split())
    assert "starts at 2.down.bias · param_grad · step 0 · micro-batch 0" in text
    assert "no rank of the candidate recorded it" in text
    assert "1.down.bias · param_grad" not in text
