"""A Point without a verdict does not end a fuzz test, and is never a silent pass."""

from __future__ import annotations

import pytest

#: Where layers=1 the comparison is inconclusive; `{planted}` is a condition that fails.
TEST = """
import pytest
from counted import ran
from pytest_trainsafe import TrainsafeFailure, trainsafe_fuzz
from pytest_trainsafe.core.finding import Finding

def doubt():
    found = Finding(verdict="inconclusive", judge="compare", check="moved", message="unknown")
    return TrainsafeFailure("the report of a doubt", [found])

@trainsafe_fuzz("program:train", max_examples=30, tp=[1, 2], dp=[1, 2], layers=[1, 2, 3])
def test_it(point):
    ran(point)
    {body}
"""

INCONCLUSIVE = "if point.layers == 1: raise doubt()"


def write(fuzzed, body):
    fuzzed.makepyfile(test_it=TEST.format(body=body))


def test_a_bug_is_found_although_other_points_are_inconclusive(fuzzed):
    write(fuzzed, f"{INCONCLUSIVE}\n    assert point.size('tp') == 1, 'planted'")

    result = fuzzed.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *FuzzFailure: trainsafe: fuzzing program.train found a failing point: *layers=2",
            "E *with layers=1 the test ends in another way",
            "E *no verdict * points have no verdict, which is not a pass: inconclusive: moved *",
            "E *AssertionError: planted",
        ]
    )


def test_a_test_without_a_failure_ends_as_inconclusive_after_all_examples(fuzzed, ran):
    write(fuzzed, INCONCLUSIVE)

    result = fuzzed.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    points = len(set(ran()))
    assert points > 6
    result.stdout.fnmatch_lines(
        [
            "E *FuzzInconclusive: trainsafe: fuzzing program.train found no failure, but has not *",
            f"*no verdict    3 of {points} points have no verdict, which is not a pass: *",
            "*rerun * --trainsafe-sweep * layers=1",
            "*the report of a doubt",
            "*examples *verdict *",
            f"*{points} *inconclusive *",
        ]
    )


def test_points_that_the_test_skips_are_named_and_the_others_pass(fuzzed):
    write(fuzzed, "if point.layers == 1: pytest.skip('one layer has no seam')")

    fuzzed.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_test_that_skips_every_point_is_skipped_with_the_reason(fuzzed):
    write(fuzzed, "pytest.skip('no such framework here')")

    result = fuzzed.runpytest_inprocess("-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * no such framework here"])


@pytest.mark.parametrize("body", ["assert point.layers", "pass"])
def test_a_test_whose_points_all_pass_passes(fuzzed, body):
    write(fuzzed, body)

    fuzzed.runpytest_inprocess().assert_outcomes(passed=1)
