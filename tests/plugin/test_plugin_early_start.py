"""The fork server starts while tests are collected, if they will launch ranks."""

from __future__ import annotations

import pytest

#: Writes down whether a server has been started when the run ends, before it is closed.
SHOW = """
import sys

def pytest_sessionfinish(session):
    early = sys.modules.get("pytest_trainsafe.launch.forkserver.early")
    print("started:", early is not None and early._started)
"""

TEST = """
import pytest
from pytest_trainsafe import assert_trainsafe

@pytest.mark.skip
def test_it():
    assert_trainsafe(None, None)
"""

MARKED = """
import pytest

@pytest.mark.skip
@pytest.mark.trainsafe("program:train", dp=[2])
def test_it({fixture}):
    pass
"""


@pytest.fixture
def shown(project):
    project.makeconftest(SHOW)
    return project


@pytest.mark.parametrize(
    ("test", "arguments", "started"),
    [
        (TEST, (), True),
        (MARKED.format(fixture="candidate_trace"), (), True),
        (MARKED.format(fixture="torchrun_group"), (), True),
        (MARKED.format(fixture="trainsafe"), (), False),
        (TEST.replace("assert_trainsafe", "divides"), (), False),
        (TEST, ("--collect-only",), False),
        (TEST, ("--trainsafe-plan", "json"), False),
        (TEST, ("--trainsafe-launcher", "torchrun"), False),
        (TEST, ("--trainsafe-launcher", "threads"), True),
    ],
)
def test_the_server_starts_at_the_first_sign_that_ranks_are_needed(shown, test, arguments, started):
    shown.makepyfile(test)

    result = shown.runpytest_subprocess("-s", *arguments)

    result.stdout.fnmatch_lines([f"*started: {started}"])


def test_the_module_that_is_imported_after_the_assertion_runs_beside_the_server(shown):
    shown.makepyfile(
        slow="""
        from pytest_trainsafe.launch.forkserver import early
        print("beside:", early._started)
        """,
        test_it=f"{TEST}\nimport slow\n",
    )

    result = shown.runpytest_subprocess("-s")

    result.stdout.fnmatch_lines(["*beside: True", "*started: True"])


COLLECTOR = """
import gc
import pytest
from pytest_trainsafe import assert_trainsafe

collected = gc.isenabled()

def test_paused_while_modules_are_imported():
    assert not collected

def test_runs_again_with_the_tests():
    assert gc.isenabled()
"""


def test_the_garbage_collector_pauses_from_the_servers_start_to_the_first_test(project):
    project.makepyfile(COLLECTOR)

    result = project.runpytest_subprocess()

    result.assert_outcomes(passed=2)


def test_a_collector_that_the_user_disabled_stays_disabled(project):
    project.makeconftest("import gc; gc.disable()")
    project.makepyfile(COLLECTOR.replace("assert gc.isenabled()", "assert not gc.isenabled()"))

    result = project.runpytest_subprocess()

    result.assert_outcomes(passed=2)
