"""A group that fails says which rank failed first, how, and what the others did."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.launch import GroupFailure, Launcher, Task, raise_for_failure
from pytest_trainsafe.launch.failure import raised_at
from tests.support.launch import programs
from tests.support.launch.programs import PROCESSES, Launch

Failure = Callable[..., str]


def test_an_exception_arrives_with_its_traceback(failure: Failure) -> None:
    lines = failure(programs.raise_on_rank_1).splitlines()
    assert lines[0] == "rank 1 of 2 raised ValueError: the answer is not 42"
    text = "\n".join(lines)
    assert "in raise_on_rank_1\n      raise ValueError(" in text
    assert "stderr of rank 1:\n  about to fail\n" in text
    assert "rank 0 of 2 waits in all_reduce at " in text
    assert "<- " not in text  # no other rank is the odd one out
    assert "last collective of rank 0: all_reduce(SUM) of 4 float32 at " in text


def test_a_failure_names_the_run_that_its_group_belongs_to(launch: Launch) -> None:
    result = launch(programs.raise_on_rank_1)
    with pytest.raises(GroupFailure) as caught:
        raise_for_failure(result, "the candidate at tp=2, in float32")
    lines = str(caught.value).splitlines()
    assert lines[0] == "rank 1 of 2 raised ValueError: the answer is not 42"
    assert lines[1] == "this was the candidate at tp=2, in float32"


@pytest.mark.parametrize("launcher", PROCESSES, indirect=True)  # a thread may not have begun yet
def test_a_rank_that_never_joins_a_collective_is_the_odd_one_out(launch: Launch) -> None:
    result = launch(programs.rank_1_never_comes, world_size=3, timeout=5)
    assert [rank.status for rank in result.ranks] == ["hung"] * 3
    with pytest.raises(GroupFailure) as caught:
        raise_for_failure(result)
    text = str(caught.value)
    at = relative(raised_at(result))
    assert "programs.py:" in at
    says = r" and did not come to all_reduce( #1)?; 3 of 3 ranks had not finished after 5 s\n"
    assert re.match(re.escape(f"rank 1 is at {at}") + says, text)
    assert "\nranks 0, 2 of 3 wait in all_reduce at " in text
    sits = [line for line in text.splitlines() if line.startswith("rank 1 of 3 is at ")]
    assert sits[0].endswith("(sit)   <- the odd one out")
    assert ", in rank_1_never_comes" not in text  # faulthandler's frames, not a traceback's
    assert text.count("in rank_1_never_comes") == 2  # a stack of each kind, not of each rank


@pytest.mark.parametrize("file", ["ledger", "result"])
def test_a_full_disk_is_named(failure: Failure, file: str) -> None:
    headline = failure(getattr(programs, f"full_{file}")).splitlines()[0]
    assert "rank 1 of 2 raised OSError: [Errno 28] No space left on device" in headline
    expected = {"ledger": "the ledger of collectives", "result": "wrote its outcome"}
    assert expected[file] in headline


def test_a_module_that_cannot_be_imported_fails_with_its_error(failure: Failure) -> None:
    headline = failure("no_such_module_here:train", world_size=1).splitlines()[0]
    expected = "rank 0 of 1 raised ModuleNotFoundError: No module named 'no_such_module_here'"
    assert headline == expected


def test_a_group_ends_on_request(launcher: Launcher, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    task = Task.of(programs.sit, world_size=1)
    result = launcher.run(task, timeout=60, workdir=tmp_path, stop=stop)
    assert result.problem == "stopped on request"
    assert result.ranks[0].status == "stopped"
    assert result.seconds < 30


@pytest.mark.parametrize("launcher", PROCESSES, indirect=True)  # threads have no GPUs
def test_a_rank_without_a_gpu_reports_how_many_are_visible(failure: Failure) -> None:
    headline = failure(
        programs.sit, world_size=1, device="cuda", env={"CUDA_VISIBLE_DEVICES": ""}
    ).splitlines()[0]
    assert headline == (
        "rank 0 of 1 raised RuntimeError: the task needs one CUDA device for each of 1 ranks, "
        "but 0 are visible; use fewer ranks or device='cpu'"
    )


@pytest.mark.parametrize("launcher", ["torchrun"], indirect=True)
def test_a_torchrun_that_does_not_start_says_why(failure: Failure, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not this torch')\n")
    text = failure(programs.sit, env={"PYTHONPATH": str(tmp_path)})
    assert text.splitlines()[0].endswith("on 2 ranks: torchrun ended before the ranks did")
    assert "ImportError: not this torch" in text
