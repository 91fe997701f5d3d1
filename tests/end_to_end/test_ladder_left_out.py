"""A program that cannot run in float64 is judged in float32, and that is said.

The same holds for a candidate whose reference can; one that runs in no dtype has failed.
"""

from __future__ import annotations

import json

import half_single_program
import pytest
from single_precision_program import train

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.launch import GroupFailure


@pytest.mark.trainsafe(train, dp=2)
def test_float64_is_left_out_and_the_summary_says_so(candidate_trace, reference_trace, request):
    assert_trainsafe(candidate_trace, reference_trace)

    summary = json.loads(dict(request.node.user_properties)["trainsafe"])
    assert [rung["dtype"] for rung in summary["rungs"]] == ["float32"]
    assert "float64 was skipped: the reference cannot run in it" in summary["notes"][0]
    assert "no kernel for torch.float64, at " in summary["notes"][0]
    assert "single_precision_program.py:15)" in summary["notes"][0]


@pytest.mark.trainsafe(train, dp=2, candidate_args={"reduced": False})
def test_float32_still_finds_the_bug(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert "0.weight · main_grad · step 0 · float32" in text
    assert "an all-reduce over dp is missing" in text
    assert "float64 was skipped" in text


@pytest.mark.trainsafe(half_single_program.train, dp=2, candidate_args={"fused": "float32"})
def test_float64_is_left_out_where_the_candidate_alone_cannot(
    candidate_trace, reference_trace, request
):
    assert_trainsafe(candidate_trace, reference_trace)

    summary = json.loads(dict(request.node.user_properties)["trainsafe"])
    assert [rung["dtype"] for rung in summary["rungs"]] == ["float32"]
    note = summary["notes"][0]
    assert note.startswith("float64 was skipped: the candidate cannot run in it (rank ")
    assert "AssertionError: assert values.dtype is torch.float32 at " in note
    assert note.endswith("half_single_program.py:19)")


@pytest.mark.trainsafe(half_single_program.train, dp=2, candidate_args={"fused": "broken"})
def test_a_candidate_that_runs_in_no_dtype_has_failed(candidate_trace, reference_trace):
    with pytest.raises(GroupFailure, match=r"broken for torch\.float32"):
        assert_trainsafe(candidate_trace, reference_trace)
