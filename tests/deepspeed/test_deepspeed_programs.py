"""Models and configs as users have them: frozen and unused parameters, own optimizers, files."""

import deepspeed_programs
import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import deepspeed_gpt

pytest.importorskip("deepspeed")


@pytest.mark.trainsafe(deepspeed_programs.odd_parameters, zero=[0, 3], dp=2)
def test_frozen_and_unused_parameters_are_no_difference(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(deepspeed_programs.client_optimizer, zero=[1, 3], dp=2)
def test_an_optimizer_of_the_user_with_groups_is_followed(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(deepspeed_programs.config_of_a_file, dp=2)
def test_a_config_file_says_stage_and_batch_sizes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
    trace = candidate_trace.at("float32")
    assert {step.microbatches for rank in trace.ranks for step in rank.steps} == {2}
    states = [e for r in trace.ranks for e in r.tensors.values() if e.id.kind == "optimizer_state"]
    assert any(placement.axes == ("dp",) for event in states for placement in event.layout)


@pytest.mark.trainsafe(deepspeed_programs.overflowing, zero=[1, 3], dtype="bfloat16")
def test_a_step_that_was_left_out_is_told(candidate_trace):
    trace = candidate_trace.at("bfloat16")
    assert [step.optimizer_stepped for step in trace.ranks[0].steps] == [True, False]
    assert trace.ranks[0].note("skipped") == [
        "step 1, DeepSpeed found gradients that are not finite"
    ]


ROUND_ROBIN = {"config": {"zero_optimization": {"round_robin_gradients": True}}}


@pytest.mark.trainsafe(
    deepspeed_gpt.train, zero=2, dp=2, candidate_args=ROUND_ROBIN, accept=["coverage"]
)
def test_where_deepspeed_tells_wrongly_who_holds_what_updates_are_judged(
    candidate_trace, reference_trace
):
    assert_trainsafe(candidate_trace, reference_trace)
    notes = candidate_trace.at("float32").ranks[0].note("unseen")
    assert any("with round_robin_gradients" in note for note in notes)
