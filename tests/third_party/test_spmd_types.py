"""A program under the checker of spmd_types trains as it is, and its types are seen in its values.

The checker and the proof see different things: types from line to line, and values.
"""

from __future__ import annotations

import pytest

pytest.importorskip("spmd_types", reason="needs spmd_types: make test-third-party")

from pytest_trainsafe import TrainsafeFailure, assert_proved_equivalent, assert_trainsafe
from pytest_trainsafe.judges.exact.types import observed_types
from tests.support.third_party import spmd_mlp

pytestmark = pytest.mark.slow


@pytest.mark.trainsafe(spmd_mlp.train, tp=2)
def test_a_program_under_the_checker_of_spmd_types_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(spmd_mlp.train, tp=2)
def test_the_types_that_are_observed_are_those_that_the_checker_accepts(
    candidate_trace, reference_trace
):
    assert_proved_equivalent(candidate_trace, reference_trace)
    types = observed_types(candidate_trace.at("exact"), reference_trace.at("exact"))
    found = {each.id.path: each.axes["tp"] for each in types if each.id.kind == "activation"}
    assert found == {
        "up.output": "sharded (dimension 1)",
        "down.output": "partial sum",
        "output": "replicated",
    }


@pytest.mark.trainsafe(spmd_mlp.train, args={"reduced": False}, tp=2)
def test_a_type_that_is_stated_and_not_made_is_refuted(candidate_trace, reference_trace):
    """The checker takes the author's word for a tensor that was made outside of it."""
    with pytest.raises(TrainsafeFailure) as raised:
        assert_proved_equivalent(candidate_trace, reference_trace)
    assert "partial sums over tp" in raised.value.line
