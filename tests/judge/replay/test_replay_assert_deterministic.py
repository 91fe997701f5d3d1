"""`assert_deterministic` in a pytest run: real ranks, repeated in new processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe import Trace, assert_deterministic
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

TEST = """
import pytest

from determinism_programs import train
from pytest_trainsafe import assert_deterministic


@pytest.mark.trainsafe(train, dp=[2], dtype=["float64"], args={"fault": "order of a set"})
def test_order(candidate_trace):
    assert_deterministic(candidate_trace)
"""


def test_ranks_in_new_processes_compute_the_same_until_one_follows_a_set(
    pytester, write_ini, without_hypothesis, shared_fork_server
):
    program = Path(__file__).with_name("determinism_programs.py")
    pytester.makepyfile(determinism_programs=program.read_text(), test_determinism=TEST)
    write_ini()

    result = pytester.runpytest_subprocess("--trainsafe-localize=off")

    result.assert_outcomes(failed=1)
    # Step 0 and what is before it are alike: forked ranks and new ones compute the same bits.
    result.stdout.fnmatch_lines(
        [
            "*trainsafe: determinism_programs:train at dp=2 is not deterministic",
            "*determinism:unknown",
            "*first*input.0 · input · step 1 · micro-batch 0 differs by up to * on rank 0 in*",
            "*so*the cause is not known: the operators were not recorded*",
        ]
    )


@pytest.mark.parametrize("given", [None, "a/trace", object()])
def test_what_cannot_be_repeated_is_refused(given):
    with pytest.raises(ArgumentTypeError, match="pass the fixture candidate_trace"):
        assert_deterministic(given)


def test_a_recorded_trace_is_refused():
    with pytest.raises(ArgumentTypeError, match="whose Run is repeated"):
        assert_deterministic(Trace.__new__(Trace))  # type: ignore[arg-type]


class Fixture:
    """What the assertion takes for a fixture."""

    prefetch = None


FIXTURE: Any = Fixture()


@pytest.mark.parametrize("repeats", [1, 0, -3])
def test_fewer_than_two_runs_are_refused(repeats):
    with pytest.raises(ArgumentError, match=f"repeats={repeats}; repeats must be 2 or more"):
        assert_deterministic(FIXTURE, repeats=repeats)


@pytest.mark.parametrize("repeats", [2.0, "2", True])
def test_a_number_of_runs_that_is_none_is_refused(repeats):
    with pytest.raises(ArgumentTypeError, match="repeats must be the number of Runs, such as 2"):
        assert_deterministic(FIXTURE, repeats=repeats)
