"""The states of ZeroRedundancyOptimizer are whole on one rank: that is no missing replica."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_proved_equivalent, assert_trainsafe
from tests.support.record.zero_redundancy_program import train


@pytest.mark.trainsafe(train, dp=2, zero=1, microbatches=4, dtype="float64")
def test_a_training_passes_with_all_of_its_states_compared(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)

    states = [id for id in candidate_trace.at("float64").ids() if id.kind == "optimizer_state"]
    # Four parameters, three states, two steps.
    assert len(states) == 4 * 3 * 2


@pytest.mark.trainsafe(train, dp=2, zero=1, microbatches=4)
def test_a_training_is_proved_on_exact_numbers(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    train, dp=2, microbatches=4, dtype="float64", candidate_args={"bug": "forgotten"}
)
def test_a_moment_that_its_rank_forgets_is_found(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as caught:
        assert_trainsafe(candidate_trace, reference_trace)

    lead = next(each for each in caught.value.findings if each.verdict == "fail")
    assert str(lead.where).startswith("0.bias.exp_avg · optimizer_state · step 0")


@pytest.mark.trainsafe(
    train, dp=2, microbatches=4, dtype="float64", candidate_args={"bug": "unsent"}
)
def test_parameters_that_are_not_sent_are_found(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as caught:
        assert_trainsafe(candidate_trace, reference_trace)

    lead = next(each for each in caught.value.findings if each.verdict == "fail")
    assert lead.where is not None
    assert (lead.check, lead.where.kind) == ("replicas", "param")
