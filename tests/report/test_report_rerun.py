"""The printed command runs the test again, wherever below or beside the root pytest started."""

from __future__ import annotations

import re
import shlex

import pytest

TESTS = """
import pytest
from pytest_trainsafe.reference_models import gpt


@pytest.mark.trainsafe(gpt.train, tp=[1, 2])
def test_it(trainsafe, request):
    assert "tp1" in request.node.name
"""


@pytest.mark.parametrize(
    ("folder", "given"), [(".", "tests"), ("beside", "../tests"), ("tests", "test_run.py")]
)
def test_the_printed_command_runs_the_failed_test_where_pytest_was_started(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    without_hypothesis: None,
    folder: str,
    given: str,
) -> None:
    pytester.makeini("[pytest]")
    for name in ("beside", "tests"):
        pytester.mkdir(name)
    (pytester.path / "tests/test_run.py").write_text(TESTS)
    monkeypatch.chdir(pytester.path / folder)
    first = pytester.runpytest_inprocess(given)
    first.assert_outcomes(passed=1, failed=1)
    (command,) = re.findall(r"^ +rerun +pytest (.*)$", first.stdout.str(), re.MULTILINE)

    again = pytester.runpytest_inprocess(*shlex.split(command))

    again.assert_outcomes(failed=1)
