"""`assert_deterministic` in a pytest run: real ranks, repeated in new processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe import Trace, assert_deterministic
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

TEST = """
import pytest

from determinism_programs import train
from pytest_trainsafe import TrainsafeFailure, assert_deterministic


@pytest.mark.trainsafe(train, dp=[2])
def test_clean(candidate_trace):
    assert_deterministic(candidate_trace)


@pytest.mark.trainsafe(train, dp=[1], args={"fault": "order of a set"})
def test_order(candidate_trace):
    assert_deterministic(candidate_trace)
"""


def test_a_clean_program_passes_and_one_that_follows_a_set_fails(
    pytester, write_ini, without_hypothesis
):
    program = Path(__file__).with_name("determinism_programs.py")
    pytester.makepyfile(determinism_programs=program.read_text(), test_determinism=TEST)
    write_ini()

    result = pytester.runpytest_subprocess("--trainsafe-localize=off", "--trainsafe-dtypes=float64")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*trainsafe: determinism_programs:train at single device is not deterministic",
            "*determinism:unknown",
            "*first*differs by up to * on rank 0 in Run 2 of 2, and*",
            "*so*the cause is not known: the operators were not recorded*",
        ]
    )


@pytest.mark.parametrize("given", [None, "a/trace", object()])
def test_what_cannot_be_repeated_is_refused(given):
    with pytest.raises(ArgumentTypeError, match="it takes the fixture candidate_trace"):
        assert_deterministic(given)


def test_a_recorded_trace_is_refused():
    with pytest.raises(ArgumentTypeError, match="whose Run it repeats"):
        assert_deterministic(Trace.__new__(Trace))


class Fixture:
    """What the assertion takes for a fixture."""

    prefetch = None


@pytest.mark.parametrize("repeats", [1, 0, -3])
def test_fewer_than_two_runs_are_refused(repeats):
    with pytest.raises(ArgumentError, match=f"repeats={repeats}; .* so it takes 2 or more"):
        assert_deterministic(Fixture(), repeats=repeats)


@pytest.mark.parametrize("repeats", [2.0, "2", True])
def test_a_number_of_runs_that_is_none_is_refused(repeats):
    with pytest.raises(ArgumentTypeError, match="it takes the number of Runs, such as 2"):
        assert_deterministic(Fixture(), repeats=repeats)
