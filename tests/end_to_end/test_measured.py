"""Allowances come from Runs of the same computation: not from other data, flips or chance."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe
from pytest_trainsafe.judges.joint import judge_case
from tests.support.end_to_end import measured_program


def report(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    return " ".join(str(failure.value).split())


@pytest.mark.trainsafe(measured_program.train, dp=2)
def test_a_program_that_draws_its_batch_without_a_dtype_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(measured_program.train, dp=2, candidate_args={"fault": "cast"})
def test_a_cast_in_float32_is_found_in_a_program_that_draws_its_batch_without_a_dtype(
    candidate_trace, reference_trace
):
    text = report(candidate_trace, reference_trace)

    assert "differs from its single-device reference" in text
    assert "float32" in text


UNSEEDED = {"args": {"source": "unseeded"}, "dtype": ["float64"]}


@pytest.mark.trainsafe(measured_program.train, dp=2, **UNSEEDED)
def test_a_program_with_an_unseeded_generator_is_named_as_not_deterministic(
    candidate_trace, reference_trace
):
    text = report(candidate_trace, reference_trace)

    assert "inconclusive" in text
    assert "the program is not deterministic" in text
    assert "measured_program.py" in text


@pytest.mark.trainsafe(
    measured_program.train, dp=2, **UNSEEDED, candidate_args={"source": "unseeded", "fault": "bias"}
)
def test_a_fault_in_a_program_that_is_not_deterministic_does_not_pass(
    candidate_trace, reference_trace
):
    assert "the program is not deterministic" in report(candidate_trace, reference_trace)


QUANTISED = {"args": {"quantised": True}, "dtype": ["float64"]}


@pytest.mark.trainsafe(measured_program.train, dp=2, **QUANTISED)
def test_a_quantiser_of_values_between_its_steps_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    measured_program.train, dp=2, **QUANTISED, candidate_args={"quantised": True, "fault": "bias"}
)
def test_a_gradient_of_a_quantised_program_that_is_a_percent_too_large_is_found(
    candidate_trace, reference_trace
):
    assert "down.bias" in report(candidate_trace, reference_trace)


@pytest.mark.trainsafe(measured_program.train, dp=2, args={"average": True}, dtype=["float64"])
def test_an_average_of_the_weights_that_nobody_watches_is_noted(candidate_trace, reference_trace):
    joint = judge_case(candidate_trace, reference_trace)

    assert joint.verdict == "pass"
    notes = [text for each in joint.judgements for text in each.not_compared]
    assert any("4 weights of the module AveragedModel" in text for text in notes)
