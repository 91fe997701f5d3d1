"""A marked test that passes without a look at any Run is warned of; no other is."""

import pytest

HEADER = """
import pytest
from program import train
from pytest_trainsafe import assert_trainsafe

swept = pytest.mark.trainsafe(train, tp=[1])
"""

PROGRAM = """
def train(ctx):
    raise AssertionError("nothing is trained here")
"""

#: Looks at a Run that fails.
FAILS = """
from pytest_trainsafe.launch import GroupFailure

@swept
def test_it({names}):
    {more}
    with pytest.raises(GroupFailure, match="nothing is trained here"):
        candidate_trace.at("float64")
"""
DYNAMIC = "candidate_trace = request.getfixturevalue('candidate_trace')"

WARNING = (
    "*test_it?tp1? has the trainsafe marker, but used no Run, so it could not fail; call assert*"
)


@pytest.fixture
def outcome(pytester):
    """Runs the test `test_it` in a process of its own: warnings here are errors."""

    def run(source, **expected):
        pytester.makepyfile(program=PROGRAM)
        pytester.makeini("[pytest]\npythonpath = .\n")
        pytester.makepyfile(test_it=HEADER + source)
        result = pytester.runpytest_subprocess("--trainsafe-dtype=float64")
        result.assert_outcomes(**expected)
        return result

    return run


@pytest.mark.parametrize(
    "source",
    [
        "@swept\ndef test_it(candidate_trace, reference_trace): pass",
        "@swept\ndef test_it(candidate_trace, trainsafe): assert candidate_trace.case",
        "@swept\ndef test_it(): pass",
    ],
    ids=["traces", "not looked at", "none"],
)
def test_a_test_that_looks_at_nothing_is_warned_of(outcome, source):
    outcome(source, passed=1, warnings=1).stdout.fnmatch_lines([WARNING])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@swept\ndef test_it(trainsafe): assert trainsafe.point", {"passed": 1}),
        ("@swept\ndef test_it(torchrun_group): pass", {"passed": 1}),
        (FAILS.format(names="candidate_trace", more=""), {"passed": 1}),
        (FAILS.format(names="request, trainsafe", more=DYNAMIC), {"passed": 1}),
        ("def test_it(): pass", {"passed": 1}),
        ("@swept\ndef test_it(candidate_trace): pytest.skip('not now')", {"skipped": 1}),
        ("@swept\ndef test_it(candidate_trace): raise AssertionError", {"failed": 1}),
    ],
    ids=["its point", "a group", "a failure", "asked for", "unmarked", "skips", "fails"],
)
def test_no_other_test_is_warned_of(outcome, source, expected):
    result = outcome(source, warnings=0, **expected)
    result.stdout.no_fnmatch_line("*used no Run*")


def test_the_warning_is_filtered_by_its_category(pytester):
    pytester.makepyfile(program=PROGRAM)
    ini = "[pytest]\npythonpath = .\nfilterwarnings = ignore::pytest_trainsafe.TrainsafeWarning\n"
    pytester.makeini(ini)
    pytester.makepyfile(test_it=HEADER + "@swept\ndef test_it(): pass")

    pytester.runpytest_inprocess().assert_outcomes(passed=1, warnings=0)
