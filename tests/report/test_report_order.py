"""The tests in a report are in the order of their collection, also with pytest-xdist."""

import os

import pytest

WAITING = """
import os
import select

import pytest
from pytest_trainsafe.sweep.point_summary import attach_summary

@pytest.fixture
def turn(request):
    if "tp2" in request.node.name:
        # Begins after the other worker has reported the other test.
        assert select.select([os.open("pipe", os.O_RDWR)], [], [], 60)[0]

@pytest.mark.trainsafe("program:train", tp=[2, 4])
def test_judged(request, turn):
    summary = {"point": "", "verdict": "pass", "rungs": [], "seconds": {"train": 1.0}}
    attach_summary(request.node, summary)
"""

TELLING = """
import os

import pytest

@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid):
    if "tp4" in nodeid and "PYTEST_XDIST_WORKER" in os.environ:
        os.write(os.open("pipe", os.O_RDWR), b"reported")
"""


def test_points_of_workers_are_shown_in_the_order_of_the_sweep(project):
    pytest.importorskip("xdist")
    os.mkfifo(project.path / "pipe")
    project.makepyfile(WAITING)
    project.makeconftest(TELLING)

    result = project.runpytest_inprocess("-n", "2")

    result.assert_outcomes(passed=2)
    rows = ["  tp  verdict *", "  2   pass *", "  4   pass *"]
    result.stdout.fnmatch_lines(rows, consecutive=True)


def test_deselected_tests_are_not_taken_for_reports(project):
    """pytest keeps them beside the reports, and they have properties too."""
    project.makepyfile(
        """
        import pytest
        from pytest_trainsafe.sweep.point_summary import attach_summary

        @pytest.mark.trainsafe("program:train", tp=[2, 3])
        def test_judged(request):
            summary = {"point": "", "verdict": "pass", "rungs": [], "seconds": {"train": 1.0}}
            attach_summary(request.node, summary)
        """
    )

    result = project.runpytest_inprocess("-W", "default", "-k", "tp2", "--trainsafe-learn=ours")

    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["no pack was written, because no test marked healthy=True *"])


def test_a_module_that_cannot_be_imported_is_reported_as_by_pytest_itself(project):
    """pytest keeps its report beside those of tests, and it has no properties."""
    project.makepyfile("import not_a_module")

    result = project.runpytest_inprocess("-W", "default")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ModuleNotFoundError: No module named 'not_a_module'"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
