"""`assert_deterministic` in a pytest run: two ranks, repeated in new processes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe import Trace, assert_deterministic
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

TEST = """
import pytest

from tests.support.replay.determinism_programs import train
from pytest_trainsafe import assert_deterministic


@pytest.mark.trainsafe(train, dp=[2], dtype=["float64"], args={"fault": "order of a set"})
def test_order(candidate_trace):
    assert_deterministic(candidate_trace)
"""


def test_nondeterminism_from_the_order_of_a_set_is_reported_at_the_first_differing_step(
    pytester, write_ini, without_hypothesis, shared_fork_server
):
    pytester.makepyfile(test_determinism=TEST)
    write_ini()

    result = pytester.runpytest_inprocess("--trainsafe-localize=off")

    result.assert_outcomes(failed=1)
    # Nothing differs up to the end of step 0: forked and new ranks compute the same bits.
    result.stdout.fnmatch_lines(
        [
            "*trainsafe: *.determinism_programs:train at dp=2 is not deterministic",
            "*determinism:unknown",
            "*first*input.0 · input · step 1 · micro-batch 0 differs by up to * on rank 0 in*",
            "*so*the cause is not known: the operators were not recorded*",
        ]
    )


@pytest.mark.parametrize("given", [None, "a/trace", object()])
def test_assert_deterministic_refuses_a_value_that_is_no_fixture(given):
    with pytest.raises(ArgumentTypeError, match="pass the fixture candidate_trace"):
        assert_deterministic(given)


def test_assert_deterministic_refuses_a_recorded_trace():
    with pytest.raises(ArgumentTypeError, match="whose Run is repeated"):
        assert_deterministic(Trace.__new__(Trace))  # type: ignore[arg-type]


class Fixture:
    """An object that the assertion accepts as a fixture."""

    prefetch = None


FIXTURE: Any = Fixture()


@pytest.mark.parametrize("repeats", [1, 0, -3])
def test_fewer_than_two_runs_are_refused(repeats):
    with pytest.raises(ArgumentError, match=f"repeats={repeats}; repeats must be 2 or more"):
        assert_deterministic(FIXTURE, repeats=repeats)


@pytest.mark.parametrize("repeats", [2.0, "2", True])
def test_repeats_must_be_an_integer(repeats):
    with pytest.raises(ArgumentTypeError, match="repeats must be the number of Runs, such as 2"):
        assert_deterministic(FIXTURE, repeats=repeats)
