"""A program that declares its own mesh axes and order of ranks is compared by that mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe
from tests.support.end_to_end.models.mesh_programs import hybrid, tp_innermost, tp_outermost


def report(candidate, reference, **arguments):
    """The failure report of the candidate with these arguments; the reference gets none of them."""
    candidate.case = replace(candidate.case, candidate_arguments=arguments)
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate, reference)
    return " ".join(str(failure.value).split())


@pytest.mark.trainsafe(hybrid, dp_replicate=2, dp_shard=2, dtype="float64")
def test_hybrid_sharding_passes_and_a_missing_all_reduce_is_reported_with_its_axis(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)

    text = report(candidate_trace, reference_trace, missing="dp_replicate")

    assert "an all-reduce over dp_replicate is missing for this gradient" in text


@pytest.mark.trainsafe(tp_innermost, dp_replicate=2, tp=2, dtype="float64")
def test_tp_as_the_innermost_mesh_axis_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(tp_outermost, dp_replicate=2, tp=2, dtype="float64")
def test_tp_as_the_outermost_mesh_axis_passes_and_a_missing_all_reduce_is_reported(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)

    text = report(candidate_trace, reference_trace, missing="dp_replicate")

    assert "an all-reduce over dp_replicate is missing for this gradient" in text
