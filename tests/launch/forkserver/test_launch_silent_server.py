"""A group is stopped at once on request although the fork server does not answer."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_trainsafe.launch import Task, WarmLauncher
from pytest_trainsafe.launch.forkserver import group as warm_group
from tests.support.launch import programs


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a fork server that is still starting: it listens and accepts no connection."""
    monkeypatch.chdir(tmp_path)
    Path("server").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("server/ranks")
        listening.listen()
        yield str(tmp_path / "server")


def stopped() -> threading.Event:
    stop = threading.Event()
    stop.set()
    return stop


def test_a_group_that_the_fork_server_has_not_started_ends_on_request(
    silent: str, tmp_path: Path
) -> None:
    task = Task.of(programs.sit, world_size=2)
    result = WarmLauncher(silent).run(task, timeout=600, workdir=tmp_path, stop=stopped())
    assert result.problem == "stopped on request"
    assert result.seconds < 10  # a reaper that has begun has twice as long to end its ranks


@pytest.mark.parametrize("ending", ["sweep", "close", ""])
def test_a_request_that_was_cancelled_before_the_server_read_it_starts_no_group(
    ending: str,
) -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    out, err = os.dup(1), os.dup(2)  # the reaper takes the pipe as its own output
    try:
        request = {"task": "t", "world_size": 1, "environ": {}, "sys_path": [], "cwd": "/"}
        socket.send_fds(ours, [json.dumps(request).encode() + b"\n"], [write, read])
        if ending == "sweep":
            ours.send(b"sweep\n")
        elif ending == "close":
            ours.close()
        found = warm_group._read(theirs)
    finally:
        os.dup2(out, 1)
        os.dup2(err, 2)
        for fd in (out, err, read, write):
            os.close(fd)
        ours.close()
        theirs.close()
    if ending:
        assert found is None
    else:
        assert found is not None
        assert found["task"] == "t"
        os.close(found["gate"])
