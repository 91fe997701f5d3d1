"""The inputs of a module are compared if an annotation declares them (TTrace's Figure 3)."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe
from tests.support.end_to_end.models import module_inputs_program

POINT = {"tp": 2, "sp": True, "dtype": ["float64"]}


def failing(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    return " ".join(str(failure.value).split())


@pytest.mark.trainsafe(module_inputs_program.train, cp=2, **POINT)
def test_a_correct_program_passes_and_its_inputs_are_compared(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)

    inputs = {
        id.path
        for id in candidate_trace.at("float64").ids()
        if id.name.startswith("input") and id.kind in ("activation", "activation_grad")
    }
    assert inputs == {"linear_qkv.input.0", "linear_proj.input.0"}


@pytest.mark.trainsafe(module_inputs_program.train, candidate_args={"fault": "input"}, **POINT)
def test_a_wrong_input_is_the_first_wrong_tensor(candidate_trace, reference_trace):
    text = failing(candidate_trace, reference_trace)

    assert "starts at linear_qkv.input.0 · activation · step 0" in text


@pytest.mark.trainsafe(module_inputs_program.train, candidate_args={"fault": "input_grad"}, **POINT)
def test_a_gradient_that_changes_behind_an_input_is_not_blamed_on_the_input(
    candidate_trace, reference_trace
):
    text = failing(candidate_trace, reference_trace)

    assert "starts at norm.output · activation_grad · step 0" in text


@pytest.mark.trainsafe(module_inputs_program.train, candidate_args={"fault": "undeclared"}, **POINT)
def test_the_layout_of_an_input_is_proposed(candidate_trace, reference_trace):
    text = failing(candidate_trace, reference_trace)

    assert "layouts are missing for 1 module" in text
    assert "linear_qkv: {input.0: {sp_dim: 0}}" in text
