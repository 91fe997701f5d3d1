"""A marked test that passes without using any Run causes a warning; no other test does."""

import re

from tests.support.end_to_end.inner_pytest import run_in

HEADER = """
import pytest
from program import train
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.launch import GroupFailure

swept = pytest.mark.trainsafe(train, tp=[1])
"""

PROGRAM = """
def train(ctx):
    raise AssertionError("nothing is trained here")
"""

#: Uses a Run that fails.
FAILS = """
@swept
def test_it({names}):
    {more}
    with pytest.raises(GroupFailure, match="nothing is trained here"):
        candidate_trace.at("float64")
"""
DYNAMIC = "candidate_trace = request.getfixturevalue('candidate_trace')"

#: Tests that use no Run, by name.
IDLE = {
    "traces": "@swept\ndef test_it(candidate_trace, reference_trace): pass",
    "not_used": "@swept\ndef test_it(candidate_trace, trainsafe): assert candidate_trace.case",
    "none": "@swept\ndef test_it(): pass",
}

#: Tests that cause no warning, each with its outcome.
OTHERS = {
    "its_point": ("@swept\ndef test_it(trainsafe): assert trainsafe.point", "PASSED"),
    "a_group": ("@swept\ndef test_it(torchrun_group): pass", "PASSED"),
    "a_failure": (FAILS.format(names="candidate_trace", more=""), "PASSED"),
    "asked_for": (FAILS.format(names="request, trainsafe", more=DYNAMIC), "PASSED"),
    "unmarked": ("def test_it(): pass", "PASSED"),
    "skips": ("@swept\ndef test_it(candidate_trace): pytest.skip('not now')", "SKIPPED"),
    "fails": ("@swept\ndef test_it(candidate_trace): raise AssertionError", "FAILED"),
}

WARNING = r"test_(\w+)\[tp1\] has the trainsafe marker, but used no Run, so it could not fail"


def test_exactly_the_marked_tests_that_use_no_run_cause_a_warning(
    pytester, without_hypothesis, shared_fork_server
):
    """The inner run is a process of its own, because warnings are errors in this one."""
    expected = dict.fromkeys(IDLE, "PASSED") | {name: word for name, (_, word) in OTHERS.items()}
    sources = IDLE | {name: source for name, (source, _) in OTHERS.items()}
    tests = [source.replace("test_it", f"test_{name}") for name, source in sources.items()]
    pytester.makepyfile(program=PROGRAM)
    pytester.makeini("[pytest]\npythonpath = .\n")
    pytester.makepyfile(test_it="\n".join([HEADER, *tests]))

    result = run_in(pytester, "-v", "--trainsafe-dtype=float64")

    result.assert_outcomes(passed=8, skipped=1, failed=1, warnings=len(IDLE))
    text = str(result.stdout)
    assert dict(re.findall(r"::test_(\w+?)(?:\[tp1\])? ([A-Z]+) ", text)) == expected
    assert sorted(re.findall(WARNING, text)) == sorted(IDLE)


def test_the_warning_can_be_ignored_by_its_category(pytester):
    pytester.makepyfile(program=PROGRAM)
    ini = "[pytest]\npythonpath = .\nfilterwarnings = ignore::pytest_trainsafe.TrainsafeWarning\n"
    pytester.makeini(ini)
    pytester.makepyfile(test_it=HEADER + "@swept\ndef test_it(): pass")

    pytester.runpytest_inprocess().assert_outcomes(passed=1, warnings=0)
