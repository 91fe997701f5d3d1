"""While one test is judged, the Runs of the next test train; unused Runs are not reported."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.end_to_end import inner_pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

HEADER = """
import os
import pytest
from tests.support.end_to_end.ahead_program import train
from pytest_trainsafe import assert_trainsafe

LOG = {log!r}

def launched(traces):
    return traces.runs.scheduler.scheduled.keys() & traces.specs()

def marked(**arguments):
    return pytest.mark.trainsafe(train, dp=2, args={{"log": LOG, **arguments}})

"""

FIRST = """
@marked()
def test_first(candidate_trace, reference_trace):
    assert not launched(candidate_trace)
    assert_trainsafe(candidate_trace, reference_trace)
"""

#: A second test in another environment.
ELSEWHERE = """
@marked()
def test_second(candidate_trace, reference_trace, monkeypatch):
    monkeypatch.setenv("UNKNOWN", "b")
    assert_trainsafe(candidate_trace, reference_trace)
"""


def run(
    folder: Path, source: str, *options: str, first: str = FIRST
) -> subprocess.CompletedProcess[str]:
    log = folder / "log"
    log.touch()
    return inner_pytest.run(folder, HEADER.format(log=str(log)) + first + source, *options)


def trained(folder: Path) -> list[str]:
    """The Runs that began to train, in order: each a tag and a Point ("single": the reference)."""
    return (folder / "log").read_text().splitlines()


def test_the_runs_of_the_next_test_are_launched_before_it_starts(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
@marked(tag="second")
def test_second(candidate_trace, reference_trace):
    assert launched(candidate_trace)
    assert_trainsafe(candidate_trace, reference_trace)

def test_third():
    pass
""",
    )
    assert done.returncode == 0, done.stdout
    each = ["dp2", "single", "single"]  # the candidate, and the reference under noise
    expected = [f"{tag} {point}" for tag in ("first", "second") for point in each]
    assert sorted(trained(tmp_path)) == expected
    assert "used no Run" not in done.stdout


def test_an_unused_run_is_dropped_and_not_reported(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
@marked(wanted="something else")  # its reference and its candidate fail
def test_second(candidate_trace, reference_trace):
    pytest.skip("not today")

@marked(tag="third")
def test_third(candidate_trace, reference_trace):
    launched = candidate_trace.runs.scheduler.scheduled
    known = [key for key in launched if "something else" in key.arguments]
    assert not [key for key in known if key.point.world_size > 1]
    assert_trainsafe(candidate_trace, reference_trace)
""",
        "-rA",
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped" in done.stdout
    assert "something else" not in done.stdout + done.stderr


def test_a_test_that_sets_an_environment_variable_gets_runs_launched_with_it(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        """
@marked(wanted="b")
def test_second(candidate_trace, reference_trace):
    assert launched(candidate_trace)
    os.environ["WANTED"] = "b"
    assert_trainsafe(candidate_trace, reference_trace)
""",
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_runs_are_not_reused_in_a_test_with_another_environment(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
@marked()
def test_second(candidate_trace, reference_trace, monkeypatch):
    from pytest_trainsafe.launch import GroupFailure

    monkeypatch.setenv("WANTED", "b")
    message = "WANTED is 'b', not ''\\nthis was the reference, on a single device, in float64"
    with pytest.raises(GroupFailure, match=message):
        assert_trainsafe(candidate_trace, reference_trace)

@marked()
def test_third(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
""",
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_references_are_reused_from_the_cache_after_an_environment_change(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        ELSEWHERE
        + """
@marked()
def test_third(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
""",
        *("-p", "cacheprovider"),
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    assert trained(tmp_path).count("first single") == 2  # with noise, and without


def test_keep_traces_keeps_the_traces_of_both_environments(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        ELSEWHERE,
        *("--trainsafe-keep-traces", "kept"),
    )
    assert done.returncode == 0, done.stdout
    kept = list((tmp_path / "kept").glob("trainsafe/*/trace/manifest.json"))
    assert len(kept) == 2 * 3  # of each test: candidate, reference, and reference under noise


def test_queued_runs_of_the_next_test_keep_the_environment_and_directory_of_their_launch(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        """
@marked(tag="next", log="log")
def test_next(candidate_trace, reference_trace):
    assert launched(candidate_trace)
    os.chdir(here)
    assert_trainsafe(candidate_trace, reference_trace)
""",
        first="""
here = os.getcwd()

@marked(tag="holding")
def test_holding(candidate_trace, reference_trace, tmp_path):
    runs = candidate_trace.runs
    with runs.scheduler.executor.groups.leases.take(1000):  # the next test's Runs wait in the queue
        runs.look_ahead()
        os.environ["WANTED"] = "b"
        os.chdir(tmp_path)
    for order in runs.scheduler.scheduled.values():
        order.run.exception()
    del os.environ["WANTED"]
""",
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert sorted(trained(tmp_path)) == ["next dp2", "next single", "next single"]


def test_exitfirst_stops_pytest_while_a_run_of_the_next_test_hangs(tmp_path: Path) -> None:
    pipe, pid = tmp_path / "pipe", tmp_path / "pid"
    os.mkfifo(pipe)
    done = run(
        tmp_path,
        f"""
    with open({str(pipe)!r}) as reader, open({str(pid)!r}, "w") as file:
        file.write(reader.read())  # the next run has begun
    raise AssertionError("the first fails")

@marked(pipe={str(pipe)!r})
def test_second(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
""",
        "-x",
    )
    assert "1 failed" in done.stdout
    assert "the first fails" in done.stdout
    assert "test_second" not in done.stdout
    assert not Path(f"/proc/{pid.read_text()}").exists()
