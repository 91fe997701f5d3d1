"""A parameter that only some ranks use fails with these ranks, and its optimizer is not blamed."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.models.bias_program import train


@pytest.mark.trainsafe(train, tp=2, dtype="float64")
def test_a_bias_that_every_rank_adds_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, dtype="float64", candidate_args={"first": True})
def test_a_bias_that_one_rank_adds_is_named_with_its_rank(
    candidate_trace, reference_trace, localizing
):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    found = failure.value.findings[0]
    assert found.where is not None
    assert found.pattern is not None
    assert (found.where.path, found.check) == ("bias", "missing")
    assert found.pattern.name == "on some ranks"
    assert found.pattern.short == "a gradient on rank 0 alone"
    text = " ".join(str(failure.value).split())
    assert "the optimizer's step of" not in text
