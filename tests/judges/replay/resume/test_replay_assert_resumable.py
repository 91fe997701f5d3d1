"""`assert_resumable` in a pytest run: two ranks, resumed by two and by one, in new processes."""

from __future__ import annotations

TEST = """
import pytest

from tests.support.replay.checkpoint_program import load, plain, save
from pytest_trainsafe import assert_resumable


@pytest.mark.trainsafe(plain, dp=[2], dtype=["float64"])
def test_resumes(candidate_trace):
    assert_resumable(candidate_trace, at_step=2, resume_point={"dp": 1}, save=save, load=load)
"""


def test_a_run_of_two_ranks_resumes_on_two_ranks_and_on_one(
    pytester, write_ini, without_hypothesis, shared_fork_server
):
    pytester.makepyfile(test_resuming=TEST)
    write_ini()

    result = pytester.runpytest_inprocess("--trainsafe-localize=off")

    result.assert_outcomes(passed=1)
