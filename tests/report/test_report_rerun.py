"""The printed command runs the test again, wherever below or beside the root pytest started."""

from __future__ import annotations

import re
import shlex

import pytest

from pytest_trainsafe.report.rerun import Rerun

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
    command = printed(first)

    again = pytester.runpytest_inprocess(*shlex.split(command))

    again.assert_outcomes(failed=1)


def printed(result: pytest.RunResult) -> str:
    """The arguments of the command that a run prints."""
    (command,) = re.findall(r"^ +rerun +pytest (.*)$", result.stdout.str(), re.MULTILINE)
    return str(command)


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_the_printed_command_has_the_files_and_settings_that_the_command_line_named(
    pytester: pytest.Pytester, without_hypothesis: None, workers: tuple[str, ...]
) -> None:
    own = pytester.mkdir("my conf") / "own.ini"
    own.write_text("[pytest]\npython_files = check_*.py\n")
    pytester.mkdir("tests")
    (pytester.path / "tests/check_run.py").write_text(TESTS)
    given = ("-c", "my conf/own.ini", "--rootdir", "tests", "-o", "cache_dir=c")
    quiet = ("--trainsafe-localize=off", "--trainsafe-max-world-size=2", *workers)
    quiet = (*quiet, "--trainsafe-sweep", "tp=2")

    first = pytester.runpytest_subprocess("tests", *given, *quiet)
    first.assert_outcomes(failed=1)
    command = printed(first)

    assert command == (
        "'tests/check_run.py::test_it[tp2]' --trainsafe-sweep tp=2 --trainsafe-max-world-size 2 "
        "-c 'my conf/own.ini' --rootdir tests -o cache_dir=c"
    )
    pytester.runpytest_subprocess(*shlex.split(command)).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("reader", "started", "before"),
    [
        ("/repo", "/repo", ""),
        ("/repo", "/repo/my tests", "cd 'my tests' && "),
        ("/repo/a", "/repo/b", "cd /repo/b && "),
        ("", "/repo/b", ""),
    ],
)
def test_a_reader_elsewhere_is_told_where_the_command_runs(
    reader: str, started: str, before: str
) -> None:
    rerun = Rerun(" -c own.ini", "", started)
    assert rerun.command("t.py::t", reader=reader) == f"{before}pytest t.py::t -c own.ini"
