"""A program that cannot run in float64 is judged in float32, and that is said."""

from __future__ import annotations

import json

import pytest
from single_precision_program import train

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure


@pytest.mark.trainsafe(train, dp=2)
def test_float64_is_left_out_and_the_summary_says_so(candidate_trace, reference_trace, request):
    assert_trainsafe(candidate_trace, reference_trace)

    summary = json.loads(dict(request.node.user_properties)["trainsafe"])
    assert [rung["dtype"] for rung in summary["rungs"]] == ["float32"]
    assert "float64 was left out: the reference cannot run in it" in summary["notes"][0]
    assert "no kernel for torch.float64" in summary["notes"][0]


@pytest.mark.trainsafe(train, dp=2, candidate_args={"reduced": False})
def test_float32_still_finds_the_bug(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert "0.weight · main_grad · step 0 · float32" in text
    assert "an all-reduce over dp is missing" in text
    assert "float64 was left out" in text
