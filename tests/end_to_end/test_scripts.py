"""A `Script` can be the program of a test, and still runs without pytest.

By default torchrun starts the ranks of a script; each of its processes imports torch, which takes
seconds of CPU.  So the second test forks them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trainsafe import Script, assert_trainsafe

SCRIPT = Path(__file__).parents[1] / "support" / "end_to_end" / "plain_script.py"


@pytest.mark.trainsafe(Script(str(SCRIPT), args=("--lr", "0.01")), dp=2, dtype="float64")
def test_a_script_trains_like_one_device(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


FORGETFUL = f"""
import pytest
from pytest_trainsafe import Script, assert_trainsafe

SCRIPT = Script({str(SCRIPT)!r}, args=("--forget-reduction",))


@pytest.mark.trainsafe(SCRIPT, dp=2, dtype="float64")
def test_it(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


def test_a_missing_all_reduce_in_a_script_is_found(
    pytester, without_hypothesis, shared_fork_server
):
    pytester.makepyfile(FORGETFUL)

    result = pytester.runpytest_inprocess("--trainsafe-launcher=warm", "--trainsafe-localize=off")

    result.assert_outcomes(failed=1)
    assert "an all-reduce over dp is missing" in " ".join(result.stdout.str().split())


def test_a_script_runs_without_pytest():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)

    assert done.stdout == "trained on rank 0\n"
