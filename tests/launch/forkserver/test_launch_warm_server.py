"""The fork server: shared, replaced when it dies or is unsafe, and it learns what to preload."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.launch import (
    GroupResult,
    Script,
    Task,
    WarmLauncher,
    WarmServer,
    raise_for_failure,
)
from pytest_trainsafe.launch.forkserver.start import connect, status, teach
from tests.support.launch import warm_programs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmServer]:
    """A fork server that these tests may kill; it can import MODULES."""
    modules = tmp_path_factory.mktemp("modules")
    for name, text in MODULES.items():
        (modules / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(modules))
        server = WarmServer.start(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


#: Modules by what they do when they are imported, and why the server refuses to preload them.
MODULES = {
    "starts_a_thread": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=[9999], daemon=True).start()\n",
    "seeds_torch": "import torch\ntorch.manual_seed(0)\n",
    "patches_torch": "import torch\ntorch.nn.functional.linear = None\n",
    "sets_a_variable": "import os\nos.environ['DS_ACCELERATOR'] = 'cpu'\n",
    "starts_a_process": "import subprocess\nsubprocess.Popen(['sleep', '9999'])\n",
    "ends_the_process": "import os\nos.kill(os.getpid(), 9)\n",
    "raises": "raise SystemExit\n",
    "is_harmless": "",
    # unsafe only after the server has forked once
    "turns_unsafe": "import os, threading, time\n"
    "def turn():\n"
    "    threading.Thread(target=time.sleep, args=[9999], daemon=True).start()\n"
    "os.register_at_fork(after_in_parent=turn)\n",
}
REASONS = {
    "starts_a_thread": "has 2 threads",
    "seeds_torch": "its import changes torch's random state",
    "patches_torch": "its import changes torch.nn.functional.linear",
    "sets_a_variable": "its import changes the environment",
    "starts_a_process": "its import changes child processes",
    "ends_the_process": "its import ended the process",
    "raises": "its import raised SystemExit",
}


def run(launcher: WarmLauncher, program: Any, folder: Path, *args: Any, **options: Any) -> Any:
    task = Task.of(program, *args, **{"world_size": 2, **options})
    return launcher.run(task, timeout=60, workdir=folder)


def settled(address: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The server's status once it is as expected; each request takes it some time."""
    for _ in range(2000):
        try:
            found = status(address)
        except OSError:  # it is being replaced
            continue
        if until(found):
            return found
    raise AssertionError(f"the server stays as it is: {found}")


def test_a_module_that_a_rank_imported_is_preloaded_for_the_next_group(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    name = "hypothesis.internal.floats"
    assert run(warm, warm_programs.import_by_name, tmp_path, name).values == [[False], [False]]
    settled(warm.address, lambda found: name in found["learned"] and not found["busy"])
    assert run(warm, warm_programs.import_by_name, tmp_path, name).values == [[True], [True]]


def test_a_module_of_the_project_is_never_preloaded(warm: WarmLauncher, tmp_path: Path) -> None:
    (tmp_path / "of_the_project.py").touch()
    script = tmp_path / "train.py"
    script.write_text("import of_the_project, hypothesis.internal.cache\n")
    raise_for_failure(run(warm, Script(str(script)), tmp_path, world_size=1))
    name = "hypothesis.internal.cache"
    found = settled(warm.address, lambda found: name in found["learned"] and not found["busy"])
    assert "of_the_project" not in found["learned"]


def test_modules_whose_import_fails_or_has_side_effects_are_never_preloaded(
    server: WarmServer,
) -> None:
    before = status(server.address)["server"]
    teach(server.address, [*REASONS, "is_harmless"])
    found = settled(server.address, lambda found: "is_harmless" in found["learned"])
    assert {name: why.partition(" (")[0] for name, why in found["never"].items()} == REASONS
    assert found["server"] == before


def test_a_server_that_becomes_unsafe_is_replaced_and_never_preloads_the_module(
    server: WarmServer, tmp_path: Path
) -> None:
    teach(server.address, ["turns_unsafe"])
    before = settled(server.address, lambda found: "turns_unsafe" in found["learned"])["server"]
    warned: list[str] = []
    launcher = WarmLauncher(server.address, warn=warned.append)
    run(launcher, warm_programs.fork_server_of_this_rank, tmp_path, world_size=1)
    after = settled(server.address, lambda found: found["server"] != before)
    assert after["never"]["turns_unsafe"] == "a server that had imported it has 2 threads"
    assert warned in (
        [],  # if the status request found it first
        ["ranks are started by torchrun instead of forked: the fork server has 2 threads"],
    )


def test_a_server_that_is_killed_is_replaced(server: WarmServer, tmp_path: Path) -> None:
    launcher = WarmLauncher(server.address)
    before = status(server.address)["server"]
    os.kill(before, signal.SIGKILL)
    assert run(launcher, warm_programs.find_state, tmp_path).values == [[], []]
    assert status(server.address)["server"] != before
    log = (Path(server.address) / "log.txt").read_text()
    assert "the fork server died (signal 9)" in log


def test_groups_of_several_threads_run_at_once(warm: WarmLauncher, tmp_path: Path) -> None:
    results: list[GroupResult] = []

    def work() -> None:
        results.append(run(warm, warm_programs.meet, tmp_path, str(tmp_path), world_size=1))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.values for result in results] == [[2], [2]]


def test_thirty_groups_in_a_row_leak_no_descriptors_threads_or_processes(
    server: WarmServer, tmp_path: Path
) -> None:
    launcher = WarmLauncher(server.address)
    counts, held = [], []
    for _ in range(3):
        for _ in range(10):
            assert run(launcher, warm_programs.find_state, tmp_path).ok
        process = settled(server.address, lambda found: not found["busy"])["server"]
        counts.append(
            (
                len(os.listdir("/proc/self/fd")),
                len(os.listdir("/proc/self/task")),
                sorted(os.listdir(server.address)),
            )
        )
        held.append(len(os.listdir(f"/proc/{process}/fd")))
    assert counts[0] == counts[1] == counts[2]
    # The last status request may hold its connection a moment longer; one descriptor leaked
    # by each group would be ten.
    assert max(held) - min(held) <= 2
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        # the process that answered the status request may still be ending
        with contextlib.suppress(ProcessLookupError), open_pidfd(int(child)) as fd:
            assert select.select([fd], [], [], 10)[0], f"process {child} was left behind"


@contextlib.contextmanager
def open_pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    yield fd
    os.close(fd)


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="is not a private directory of this user"):
        connect(str(tmp_path))


def test_a_closed_server_leaves_nothing_and_later_groups_use_the_fallback(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    server = WarmServer.start(tmp_path)
    keeper = server._keeper.pid
    server.close()
    assert not Path(server.address).exists()
    assert not Path(f"/proc/{keeper}").exists()
    warned: list[str] = []
    launcher = WarmLauncher(server.address, warn=warned.append, fallback=warm)
    for _ in range(2):
        result = run(launcher, "sys:getrecursionlimit", tmp_path, world_size=1)
        assert result.values == [sys.getrecursionlimit()]
    (warning,) = warned
    assert warning.startswith(
        "ranks are started by warm instead of forked: there is no fork server"
    )


def test_a_server_that_cannot_start_says_why(
    warm: WarmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not this torch')\n")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        server = WarmServer.start(tmp_path)
    warned: list[str] = []
    launcher = WarmLauncher(server.address, warn=warned.append, fallback=warm)
    assert run(launcher, "sys:getrecursionlimit", tmp_path, world_size=1).ok
    assert "ImportError: not this torch" in warned[0]
    server.close()
    assert not Path(server.address).exists()
