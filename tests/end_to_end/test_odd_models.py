"""Unusual modules, outputs and parameters are compared, or noted as not compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.models.odd_program import STARTS, train


@pytest.mark.trainsafe(train, dp=2, dtype="bfloat16")
def test_a_correct_unusual_model_passes_and_its_uncompared_outputs_are_noted(
    candidate_trace, reference_trace, published
):
    assert_trainsafe(candidate_trace, reference_trace)

    summary = published()
    assert "not compared: own: output is a Own, with tensors in hidden" in summary["notes"]
    recorded = {f"{id.path} {id.call}" for id in candidate_trace.at("float64").ids()}
    assert {"shared.output 0", "shared.output 1", "flags.output 0", "nothing.output 0"} < recorded


@pytest.mark.parametrize("fault", list(STARTS))
@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_a_fault_in_each_unusual_part_of_the_model_is_found_at_that_part(
    trainsafe, candidate_trace, reference_trace, fault
):
    candidate_trace.case = replace(trainsafe, candidate_arguments={"fault": fault})
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert f"starts at {STARTS[fault]}" in text


@pytest.mark.trainsafe(
    train, tp=2, candidate_args={"fault": "skipped"}, dtype="float64", accept=["in-effect"]
)
def test_a_module_that_one_replica_skips_is_reported_with_its_rank(
    candidate_trace, reference_trace
):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert "starts at skipped.output · activation" in text
    assert "rank 1 should hold a replica but recorded none; the tensor is held by rank 0" in text
