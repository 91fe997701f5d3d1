"""Of two autograd functions in one forward, the one whose backward is wrong is named first."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

from pytest_trainsafe import Traces, assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.localize import fused_program


def named(candidate: Traces, reference: Traces, mistake: str) -> str:
    """The row on the line to look at, if the candidate makes a mistake."""
    candidate.case = replace(candidate.case, candidate_arguments={"mistake": mistake})
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate, reference)
    return " ".join(str(failure.value).split()).partition(" look at ")[2]


def line_of(function: type[torch.autograd.Function]) -> str:
    """The "file:line" of a function's backward, as a report ends with it."""
    lines, begin = inspect.getsourcelines(function)
    down = next(number for number, line in enumerate(lines) if "def backward" in line)
    return f"fused_program.py:{begin + down}"


@pytest.mark.parametrize("mistake", ["enter", "leave"])
@pytest.mark.trainsafe(fused_program.train, tp=2, dtype="float64")
def test_the_backward_at_fault_is_named_first(
    candidate_trace: Traces, reference_trace: Traces, localizing: None, mistake: str
) -> None:
    """The parameters' gradients are right if the fault lies between them and the input."""
    functions = [fused_program.Enter, fused_program.Leave]
    first, other = functions if mistake == "enter" else reversed(functions)
    text = named(candidate_trace, reference_trace, mistake)
    assert f"{line_of(first)} (its backward runs {first.__name__}.backward)" in text
    assert f"its backward runs {other.__name__}.backward at " in text


@pytest.mark.parametrize("mistake", ["early", "late"])
@pytest.mark.trainsafe(fused_program.train_apart, tp=2, dtype="float64")
def test_the_function_that_is_applied_to_the_first_wrong_output_is_named_first(
    candidate_trace: Traces, reference_trace: Traces, localizing: None, mistake: str
) -> None:
    first = fused_program.Early if mistake == "early" else fused_program.Late
    text = named(candidate_trace, reference_trace, mistake)
    assert f"{line_of(first)} (its backward runs {first.__name__}.backward)" in text


@pytest.mark.trainsafe(fused_program.train, tp=2, dtype="float64")
def test_the_program_passes_without_a_mistake(
    candidate_trace: Traces, reference_trace: Traces
) -> None:
    assert_trainsafe(candidate_trace, reference_trace)
