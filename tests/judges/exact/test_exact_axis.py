"""`exact` as a value of the axis dtype: such a Point is proved, refuted or not covered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.exact.proved_program import PROGRAM

TEST = """
import pytest
from program import train
from pytest_trainsafe import assert_trainsafe


@pytest.mark.trainsafe(train, tp=[2], dtype=["float64", "exact"])
def test_clean(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, dtype="exact", bug="unreduced")
def test_unreduced(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, dtype="float32", bug="unreduced")
def test_in_float64(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, dtype="exact", bug="tiny")
def test_tiny(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, dtype="exact", unknown=True, accept=["exact:semantics"])
def test_accepted(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(program=PROGRAM, test_it=TEST)
    return pytester


def test_a_point_with_the_dtype_exact_is_judged_by_the_exact_judge(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    result = project.runpytest_inprocess(
        *("--trainsafe-launcher", "threads", "--trainsafe-localize", "0.01", "-rf"),
        "--basetemp=base",
    )

    result.assert_outcomes(passed=3, failed=3)
    text = result.stdout.str()
    assert "6 points judged: 3 pass, 2 fail, 1 inconclusive" in text
    assert "rank0 + rank1 equals the reference (exactly)" in text
    assert "confirmed     float64 refutes it too" in text
    assert "(a guess, because the failure is not localised: forward of module" in text
    assert "not localised stopped at the time limit after " in text
    assert "exact numbers differ first at loss (loss), and float64 agrees up to rounding" in text
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_clean (tp=2)",
            "  float64  pass *",
            "  exact    pass     0 *",
            "*points    1: tp=2 dtype=exact bug=tiny",
            "note: proved: at each point that passes with dtype=exact, the program computes *",
            "FAILED test_it.py::test_tiny[[]tp2-exact-bugtiny] - inconclusive: *",
        ]
    )
    # A failure in a dtype is explained on exact numbers, because the program has run on them.
    rounded = text.partition("at tp=2 dtype=float32 bug=unreduced differs")[2].partition("test_it")
    assert "(exactly)" in rounded[0]
    explained = rounded[2].partition("E         exact ")[2].partition("test_it.py")[0]
    assert "equals the reference (exactly)" in " ".join(explained.split())
    [certificate] = Path(project.path).glob("**/*.certificate.json")
    assert certificate.name.startswith("test_it.py_test_clean_tp2-exact")


def test_the_command_line_can_ask_for_it_in_a_sweep_and_beside_a_dtype(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    swept = project.runpytest_inprocess(
        *("-k", "test_clean", "--trainsafe-sweep", "dtype=exact", "tp=2"), "--basetemp=base"
    )
    swept.assert_outcomes(passed=1)
    assert list(Path(project.path).glob("**/*.certificate.json"))

    both = project.runpytest_inprocess(
        *("-k", "test_unreduced", "--trainsafe-dtype", "exact,float64"),
        *("--trainsafe-localize", "off"),
    )
    both.assert_outcomes(failed=1)
    both.stdout.fnmatch_lines(
        [
            "*starts at *down.output*activation*float64",
            "E         exact *down.output*",
            "*equals the reference (exactly)",
        ]
    )
