"""A `Script` can be the program of a test, and still runs without pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trainsafe import Script, assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure

SCRIPT = Path(__file__).parents[1] / "support" / "end_to_end" / "plain_script.py"


@pytest.mark.trainsafe(Script(str(SCRIPT), args=("--lr", "0.01")), dp=2, dtype="float64")
def test_a_script_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(Script(str(SCRIPT), args=("--forget-reduction",)), dp=2, dtype="float64")
def test_a_missing_all_reduce_in_a_script_is_found(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure, match="an all-reduce over dp is missing"):
        assert_trainsafe(candidate_trace, reference_trace)


def test_a_script_runs_without_pytest():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)

    assert done.stdout == "trained on rank 0\n"
