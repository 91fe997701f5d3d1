"""Ranks may be forked before their group has a lease: they do nothing until it runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pytest_trainsafe.launch import Task, WarmLauncher
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.forkserver.preforked import PreforkedGroup
from tests.support.launch import programs


def wait_for_preforked_ranks(workdir: Path, ranks: int) -> list[int]:
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


def test_a_group_runs_in_the_ranks_that_were_forked_for_it(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    task = Task.of(programs.own_pid, world_size=2)
    with PreforkedGroup(warm, task, tmp_path) as preforked:
        preforked.begin()
        forked = wait_for_preforked_ranks(tmp_path, 2)
        result = preforked.run({}, timeout=60, stop=threading.Event())
    assert result.values == forked
    assert result.seconds > 0


def test_preforked_ranks_that_never_run_end_without_starting_the_program(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    task = Task.of(programs.rank_0_is_early, str(tmp_path), world_size=1)
    with PreforkedGroup(warm, task, tmp_path) as preforked:
        preforked.begin()
        (pid,) = wait_for_preforked_ranks(tmp_path, 1)
    assert not Path(f"/proc/{pid}").exists()
    assert not (tmp_path / "pid-of-rank-0").exists()


def test_without_a_fork_server_no_ranks_are_preforked(tmp_path: Path) -> None:
    task = Task.of(programs.own_pid, world_size=1)
    with PreforkedGroup(WarmLauncher(str(tmp_path / "no server")), task, tmp_path) as preforked:
        preforked.begin()
    assert not list(tmp_path.glob("group-*"))
