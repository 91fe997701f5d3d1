"""A program that cannot run in float64 is compared in float32, and a note says so.

The same holds if only the candidate cannot; a candidate that fails in every dtype is a failure.
"""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.launch import GroupFailure
from tests.support.end_to_end import fixed_dtype_program, half_single_program
from tests.support.end_to_end.single_precision_program import train


@pytest.mark.trainsafe(train, dp=2)
def test_float64_is_skipped_with_a_note_if_the_program_cannot_run_in_it(
    candidate_trace, reference_trace, published
):
    assert_trainsafe(candidate_trace, reference_trace)

    summary = published()
    assert [rung["dtype"] for rung in summary["rungs"]] == ["float32"]
    assert "float64 was skipped: the reference cannot run in it" in summary["notes"][0]
    assert "no kernel for torch.float64, at " in summary["notes"][0]
    assert "single_precision_program.py:15)" in summary["notes"][0]


@pytest.mark.trainsafe(train, dp=2, candidate_args={"reduced": False})
def test_a_missing_all_reduce_is_found_in_float32_if_float64_is_skipped(
    candidate_trace, reference_trace
):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = " ".join(str(failure.value).split())
    assert "0.weight · main_grad · step 0 · float32" in text
    assert "an all-reduce over dp is missing" in text
    assert "float64 was skipped" in text


@pytest.mark.trainsafe(half_single_program.train, dp=2, candidate_args={"fused": "float32"})
def test_float64_is_skipped_with_a_note_if_only_the_candidate_cannot_run_in_it(
    candidate_trace, reference_trace, published
):
    assert_trainsafe(candidate_trace, reference_trace)

    summary = published()
    assert [rung["dtype"] for rung in summary["rungs"]] == ["float32"]
    note = summary["notes"][0]
    assert note.startswith("float64 was skipped: the candidate cannot run in it (rank ")
    assert "AssertionError: assert values.dtype is torch.float32 at " in note
    assert note.endswith("half_single_program.py:19)")


@pytest.mark.trainsafe(half_single_program.train, dp=2, candidate_args={"fused": "broken"})
def test_a_candidate_that_fails_in_every_dtype_fails_the_test(candidate_trace, reference_trace):
    with pytest.raises(GroupFailure, match=r"broken for torch\.float32"):
        assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(fixed_dtype_program.train, tp=2, candidate_args={"fixed": True})
def test_a_tensor_that_fixes_float32_is_named_with_the_option_that_helps(
    candidate_trace, reference_trace
):
    with pytest.raises(GroupFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)

    text = str(failure.value)
    assert "(dtype)" in text.splitlines()[0]
    assert "this Run computes in float64, and one side of the collective has float32" in text
    assert "with --trainsafe-dtype float32" in text
