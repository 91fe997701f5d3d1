"""Training is compared over several steps: tolerances grow, and faults of later steps are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import ReferenceTolerances
from pytest_trainsafe.reference_models import gpt
from tests.support.end_to_end.models.steps_program import train, without_amax_history

SMALL = {"layers": 1, "hidden": 32, "batch_size": 1}

#: The first wrong tensor of each mistake.  With `schedule`, ranks have different learning rates.
STARTS = {
    "scale": "1.linear.output · activation",
    "buffer": "0.bias · main_grad",
    "counter": "0.weight · update",
    "moments": "0.weight · update",
    "schedule": "0.weight · param",
}


@pytest.mark.trainsafe(train, dp=2, steps=4, dtype="bfloat16")
def test_four_correct_steps_pass(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)

    for trace in (candidate_trace.at("float32"), reference_trace.at("float32")):
        assert [step.step for step in trace.ranks[0].steps] == [0, 1, 2, 3]


@pytest.mark.trainsafe(gpt.train, tp=2, steps=4, args=SMALL, dtype="bfloat16")
def test_four_correct_steps_of_a_transformer_pass(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.parametrize("mistake", list(STARTS))
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.trainsafe(train, dp=2, steps=4, dtype="float64")
def test_a_mistake_that_begins_in_a_later_step_is_found_in_that_step(
    trainsafe, candidate_trace, reference_trace, mistake, first
):
    arguments = {"steps": 4, "mistake": mistake, "first": first}
    candidate_trace.case = replace(trainsafe, candidate_arguments=arguments)
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert f"starts at {STARTS[mistake]} · step {first}" in text


@pytest.mark.trainsafe(without_amax_history, tp=2, args=SMALL, dtype="float64")
def test_an_amax_history_that_is_never_updated_is_found_in_the_second_step(
    candidate_trace, reference_trace
):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert "starts at decoder.layers.0.self_attention.linear_qkv.output · activation" in text
    assert "activation · step 1 · micro-batch 0" in text


@pytest.mark.trainsafe(gpt.train, tp=2, steps=2, args={**SMALL, "learning_rate": 1e-2})
def test_tolerances_grow_over_steps_in_proportion_to_the_references_rounding_error(reference_trace):
    dtype = "bfloat16"
    reference, perturbed = reference_trace.at(dtype), reference_trace.perturbed(dtype)
    tolerances = ReferenceTolerances(RungTraces(dtype, reference, reference, perturbed))
    allowed, measured = [], []
    for id in reference.ids():
        if id.kind == "main_grad" and id.path == "decoder.layers.0.mlp.linear_fc1.weight":
            tolerance = tolerances.tolerance(id, 1.0)
            (other,) = tolerances.others(id)
            own = tolerances.reference.tensor(id)
            assert own is not None
            assert tolerance.allowed is not None
            allowed.append(tolerance.allowed.norm / tolerance.size)
            measured.append(float((other - own).norm() / own.norm()))
    first, second = allowed
    assert second > 1.5 * first
    # Both tolerances are the same multiple of the rounding error measured in their step.
    assert second / measured[1] == pytest.approx(first / measured[0], rel=0.05)
