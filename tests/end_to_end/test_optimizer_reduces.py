"""An optimizer that reduces gradients inside its step passes, and its faults are found there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.models.stepping_program import train


def report(candidate, reference, fault):
    candidate.case = replace(candidate.case, candidate_arguments={"fault": fault})
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate, reference)
    return " ".join(str(failure.value).split())


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_reductions_inside_the_step_are_known(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)

    text = report(candidate_trace, reference_trace, "sum")
    assert "is missing for this gradient" not in text
    assert "the value is 2 times the reference, which equals dp" in text
    assert "4 of 4 main gradients" in text
    assert "the mean over dp of them was compared instead" in text

    text = report(candidate_trace, reference_trace, "none")
    assert "starts at 0.weight · main_grad · step 0" in text
    assert "an average over dp is missing for this gradient" in text
