"""Ranks may be forked before there is room for them: they do nothing until there is."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import launch_programs
import pytest

from pytest_trainsafe.launch import Task, WarmLauncher
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.forkserver.preforked import PreforkedGroup


def at_the_gate(workdir: Path, ranks: int) -> list[int]:
    """The process ids of ranks that are ready to begin, once all are."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        folders = list(workdir.glob("group-*"))
        assert len(folders) <= 1
        pids = [RankFiles(folder, rank).read_pid() for folder in folders for rank in range(ranks)]
        ready = [pid for pid in pids if pid is not None]
        if len(ready) == ranks:
            return ready
        time.sleep(0.01)
    pytest.fail(f"no {ranks} ranks are ready to begin in {workdir}")


def test_ranks_that_were_forked_early_run_when_they_are_let_in(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    task = Task.of(launch_programs.own_pid, world_size=2)
    with PreforkedGroup(warm, task, tmp_path) as preforked:
        preforked.begin()
        waiting = at_the_gate(tmp_path, 2)
        result = preforked.run({}, timeout=60, stop=threading.Event())
    assert result.values == waiting
    assert result.seconds > 0


def test_ranks_that_are_not_let_in_never_began_and_end(warm: WarmLauncher, tmp_path: Path) -> None:
    task = Task.of(launch_programs.rank_0_is_early, str(tmp_path), world_size=1)
    with PreforkedGroup(warm, task, tmp_path) as preforked:
        preforked.begin()
        (pid,) = at_the_gate(tmp_path, 1)
    assert not Path(f"/proc/{pid}").exists()
    assert not (tmp_path / "pid-of-rank-0").exists()


def test_without_a_fork_server_nothing_is_begun_early(tmp_path: Path) -> None:
    task = Task.of(launch_programs.own_pid, world_size=1)
    with PreforkedGroup(WarmLauncher(str(tmp_path / "no server")), task, tmp_path) as preforked:
        preforked.begin()
    assert not list(tmp_path.glob("group-*"))
