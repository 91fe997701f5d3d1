"""Of two autograd functions in one forward, the one whose backward is wrong is named first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_trainsafe import Traces, assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.localize import fused_program


def lines_of_backwards() -> list[int]:
    """The lines of the two backwards, in the order of the file."""
    text = Path(fused_program.__file__).read_text().splitlines()
    return [number for number, line in enumerate(text, 1) if "def backward" in line]


@pytest.mark.parametrize("mistake", ["enter", "leave"])
@pytest.mark.trainsafe(fused_program.train, tp=2, dtype="float64")
def test_the_backward_at_fault_is_named_first(
    candidate_trace: Traces, reference_trace: Traces, localizing: None, mistake: str
) -> None:
    """The parameters' gradients are right if the fault lies between them and the input."""
    enter, leave = lines_of_backwards()
    candidate_trace.case = replace(candidate_trace.case, candidate_arguments={"mistake": mistake})
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    text = " ".join(str(failure.value).split())
    first, other, line = "Enter", "Leave", enter
    if mistake == "leave":
        first, other, line = other, first, leave
    named = text.partition(" look at ")[2]
    assert named.partition(" ")[0].endswith(f"fused_program.py:{line}")
    assert named.partition(" ")[2].startswith(f"(its backward runs {first}.backward)")
    assert f"its backward runs {other}.backward at " in named


@pytest.mark.trainsafe(fused_program.train, tp=2, dtype="float64")
def test_the_program_passes_without_a_mistake(
    candidate_trace: Traces, reference_trace: Traces
) -> None:
    assert_trainsafe(candidate_trace, reference_trace)
