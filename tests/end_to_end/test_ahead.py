"""While one test is judged, the next one's Runs train; nobody hears of those that nobody uses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import inner_pytest
import pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

HEADER = """
import os
import pytest
from ahead_program import train
from pytest_trainsafe import assert_trainsafe

LOG = {log!r}

def launched(traces):
    return traces.runs.session._scheduled.keys() & traces.specs()

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
    """What began to train, in order: a tag and a Point each; the reference's is "single"."""
    return (folder / "log").read_text().splitlines()


def test_the_next_tests_runs_are_launched_before_its_turn(tmp_path: Path) -> None:
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
    each = ["dp2", "single", "single"]  # the candidate, the reference, and that under noise
    both = [f"{tag} {point}" for tag in ("first", "second") for point in each]
    assert sorted(trained(tmp_path)) == both
    assert "looked at no Run" not in done.stdout


def test_a_run_that_its_test_does_not_use_is_dropped_and_never_mentioned(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
@marked(wanted="something else")  # its reference and its candidate fail
def test_second(candidate_trace, reference_trace):
    pytest.skip("not today")

@marked(tag="third")
def test_third(candidate_trace, reference_trace):
    launched = candidate_trace.runs.session._scheduled
    known = [key for key in launched if "something else" in key.arguments]
    assert not [key for key in known if key.point.world_size > 1]
    assert_trainsafe(candidate_trace, reference_trace)
""",
        "-rA",
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped" in done.stdout
    assert "something else" not in done.stdout + done.stderr


def test_a_test_that_changes_the_environment_gets_runs_of_that_environment(tmp_path: Path) -> None:
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


def test_a_test_in_another_environment_does_not_get_the_runs_of_one_before(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
@marked()
def test_second(candidate_trace, reference_trace, monkeypatch):
    from pytest_trainsafe.launch import GroupFailure

    monkeypatch.setenv("WANTED", "b")
    told = "WANTED is 'b', not ''\\nthis was the reference, on a single device, in float64"
    with pytest.raises(GroupFailure, match=told):
        assert_trainsafe(candidate_trace, reference_trace)

@marked()
def test_third(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
""",
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_references_that_are_given_up_stay_in_the_cache(tmp_path: Path) -> None:
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


def test_kept_traces_stay_though_another_environment_needs_others(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        ELSEWHERE,
        *("--trainsafe-keep-traces", "kept"),
    )
    assert done.returncode == 0, done.stdout
    kept = list((tmp_path / "kept").glob("trainsafe/*/trace/manifest.json"))
    assert len(kept) == 2 * 3  # of each test a candidate, a reference, and that under noise


def test_what_a_test_does_after_its_assertion_reaches_no_run_of_the_next(tmp_path: Path) -> None:
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
    session = candidate_trace.runs.session
    with session.leases.take(1000):  # the next test's Runs stand in the queue
        session.look_ahead()
        os.environ["WANTED"] = "b"
        os.chdir(tmp_path)
    for order in session._scheduled.values():
        order.run.exception()
    del os.environ["WANTED"]
""",
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert sorted(trained(tmp_path)) == ["next dp2", "next single", "next single"]


def test_the_first_failure_ends_pytest_though_the_next_run_never_would(tmp_path: Path) -> None:
    pipe, pid = tmp_path / "pipe", tmp_path / "pid"
    os.mkfifo(pipe)
    done = run(
        tmp_path,
        f"""
    with open({str(pipe)!r}) as told, open({str(pid)!r}, "w") as file:
        file.write(told.read())  # the next run has begun
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
