"""After the first failure, further examples search for failures that differ from it."""

from __future__ import annotations

import pytest

from pytest_trainsafe import trainsafe_fuzz
from pytest_trainsafe.errors import ArgumentError

#: Two bugs: one of tp, and one of three layers.
TEST = """
from pytest_trainsafe import TrainsafeFailure, trainsafe_fuzz
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId

def wrong(kind, pattern):
    where = TensorId(0, None, kind, "layers.0.norm", "weight")
    found = Finding(
        verdict="fail", judge="compare", check="wrong", message="", where=where,
        pattern=Pattern(pattern, ""),
    )
    return TrainsafeFailure(f"report: {{kind}} {{pattern}}", [found])

@trainsafe_fuzz("program:train", max_examples=40, {words}tp=[1, 2], dp=[1, 2], layers=[1, 2, 3])
def test_it(point):
    {body}
"""
BOTH = """if point.size('tp') > 1:
        raise wrong('main_grad', 'partial sum')
    if point.layers == 3:
        raise wrong('activation', 'scaled')
"""


def run(fuzzed, body, words=""):
    fuzzed.makepyfile(test_it=TEST.format(body=body, words=words))
    result = fuzzed.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    return result


def failures(result):
    """Returns how many failing Points the report of the test names; the summary may repeat them."""
    return sum(
        line.startswith("E ") and "found a failing point" in line for line in result.stdout.lines
    )


def test_two_bugs_are_both_found_and_each_is_reduced(fuzzed):
    result = run(fuzzed, BOTH)

    result.stdout.fnmatch_lines(["E *failures      2 failures, which differ in the first wrong *"])
    for needs, report in (
        ("tp >= 2", "main_grad partial sum"),
        ("layers=3|layers >= 3", "activation scaled"),
    ):
        lines = "\n".join(result.stdout.lines)
        assert any(f"needs {each}" in lines for each in needs.split("|"))
        assert f"report: {report}" in lines
    assert failures(result) == 2


def test_one_failure_ends_the_search_if_the_test_asks_for_one(fuzzed):
    result = run(fuzzed, BOTH, words="max_failures=1, ")

    assert failures(result) == 1
    result.stdout.no_fnmatch_line("*further example*")


def test_one_bug_at_many_points_is_reported_once(fuzzed):
    result = run(fuzzed, "if point.layers > 1: raise wrong('main_grad', 'scaled')")

    assert failures(result) == 1
    result.stdout.fnmatch_lines(["E *failures      no other failure in * further example*"])


@pytest.mark.parametrize("most", [0, True, "3", None])
def test_a_number_of_failures_that_makes_no_sense_is_refused(most):
    with pytest.raises(ArgumentError, match="max_failures takes an integer >= 1"):
        trainsafe_fuzz("program:train", max_failures=most, tp=[1, 2])
