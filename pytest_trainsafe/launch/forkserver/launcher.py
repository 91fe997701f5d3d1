"""WarmLauncher: forks ranks from a process that has already imported torch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pytest_trainsafe.errors import TrainsafeWarning
from pytest_trainsafe.launch.console.attend import attend
from pytest_trainsafe.launch.files import RankFiles, write_whole
from pytest_trainsafe.launch.forkserver import early
from pytest_trainsafe.launch.forkserver.start import WarmServer, connect, teach
from pytest_trainsafe.launch.outcome import group_result
from pytest_trainsafe.launch.protocol import Begun, Launcher, LaunchSetup
from pytest_trainsafe.launch.resources.locks import wait_lock
from pytest_trainsafe.launch.resources.namespace import is_private
from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.supervise.shared import SharedProcess
from pytest_trainsafe.launch.supervise.supervisor import Group
from pytest_trainsafe.launch.supervise.unreachable import in_private_network
from pytest_trainsafe.launch.task import Task
from pytest_trainsafe.launch.torchrun.launcher import TorchrunLauncher, environment


class WarmLauncher:
    """Runs a task as torchrun does, but forks the ranks, so that they start faster.

    `address` is that of a `WarmServer`.  Every group has new processes, which are equivalent to
    freshly started ones with two exceptions: string hashes are seeded alike in all ranks, and a
    variable that a preloaded module reads at import (DeepSpeed: DS_ACCELERATOR) has the value it
    had when the server started.  If it is known that such a difference matters, or if no server is
    safe to fork from, `fallback` runs the group; `warn` is called with the reason, once for each
    reason.  `grace`, `startup_timeout` and `network` are as in `TorchrunLauncher`.  If `server` is
    given, it ends when the launcher is closed.
    """

    name = "warm"
    #: Whether the ranks of a group are threads of one process (`launch/threads/`).
    in_threads = False

    def __init__(
        self,
        address: str,
        *,
        grace: float = 3.0,
        startup_timeout: float = 180.0,
        network: str = "auto",
        fallback: Launcher | None = None,
        warn: Callable[[str], None] | None = None,
        server: WarmServer | None = None,
    ) -> None:
        self.address = address
        self._server = server
        self.grace = grace
        self.startup_timeout = startup_timeout
        self.network = network
        self.fallback = fallback or TorchrunLauncher(
            grace=grace, startup_timeout=startup_timeout, network=network
        )
        self._warn = warn or _warn
        self._warned: set[str] = set()
        self._taught: set[str] = set()

    def run(
        self,
        task: Task,
        *,
        timeout: float,
        workdir: Path,
        stop: threading.Event | None = None,
        environ: Mapping[str, str] | None = None,
        begun: Forked | None = None,
    ) -> GroupResult:
        """Runs the task in a new folder below `workdir`; see `Launcher.run`.

        `begun` are processes that were already forked for this task and wait.
        """
        stop = stop or threading.Event()
        why = ""
        for _ in range(2):
            attendance = None
            try:
                processes = begun or self._fork(task, workdir, environ)
                begun = None
                # before the ranks run: one may ask for the terminal at once
                attendance = attend(task, processes.folder)
                processes.release()
            except OSError as error:
                if attendance is not None:
                    attendance.end()
                why = f"there is no fork server: {_given_up(self.address) or error}"
                break
            folder = processes.folder
            shared = SharedProcess(folder) if self.in_threads else None
            with Group(processes, folder, task.world_size, attendance, shared) as group:
                group.wait(
                    timeout=timeout,
                    startup_timeout=self.startup_timeout,
                    grace=self.grace,
                    stop=stop,
                )
            state = group.state
            why = state.refused or (state.problem if not processes.reaper else "")
            if not why or state.reason == "request":
                self._teach(folder, task.world_size)
                result = group_result(task, folder, state, timeout, self.startup_timeout)
                return in_private_network(result) if is_private(self.network) else result
            if state.refused:
                break
        fallback = self._fallback_for(task, why)
        if why not in self._warned:
            self._warned.add(why)
            self._warn(f"ranks are started by {fallback.name} instead of forked: {why}")
        return fallback.run(task, timeout=timeout, workdir=workdir, stop=stop, environ=environ)

    def _fallback_for(self, task: Task, why: str) -> Launcher:
        """The launcher of a task for which no ranks can be forked."""
        return self.fallback

    def begin(
        self, task: Task, workdir: Path, environ: Mapping[str, str] | None = None
    ) -> Begun | None:
        """Forks the ranks of a task that will be run soon; they wait before the program begins.

        Returns None if there is no fork server; `run` reports why.
        """
        try:
            return _Waiting(self, self._fork(task, workdir, environ), task, workdir, environ)
        except OSError:
            return None

    def close(self) -> None:
        """Ends the fork server, if this launcher was given one to close."""
        if self._server is not None:
            self._server.close()

    def _fork(self, task: Task, workdir: Path, environ: Mapping[str, str] | None) -> Forked:
        workdir.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="group-", dir=workdir.absolute()))
        try:
            return Forked(
                self.address,
                task,
                folder,
                os.environ if environ is None else environ,
                private=is_private(self.network),
                in_threads=self.in_threads,
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _teach(self, folder: Path, world_size: int) -> None:
        """Sends the server the names of the modules that the ranks had to import themselves."""
        names: dict[str, None] = {}
        for rank in range(world_size):
            names |= dict.fromkeys(RankFiles(folder, rank).read_imported())
        news = [name for name in names if name not in self._taught]
        if news:
            self._taught.update(news)
            teach(self.address, news)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A group of ranks that were forked for a task and wait; implements `Begun`."""

    launcher: WarmLauncher
    forked: Forked
    task: Task
    workdir: Path
    environ: Mapping[str, str] | None

    def run(self, *, timeout: float, stop: threading.Event) -> GroupResult:
        """Lets the ranks begin the program; returns every rank's outcome."""
        return self.launcher.run(
            self.task,
            timeout=timeout,
            workdir=self.workdir,
            stop=stop,
            environ=self.environ,
            begun=self.forked,
        )

    def end(self) -> None:
        """Ends the ranks without running the program."""
        self.forked.end()


class Forked:
    """The processes of a group that the fork server forks; implements `Processes`.

    `folder` holds the group's files.  The ranks wait until `release` is called.
    """

    def __init__(
        self,
        address: str,
        task: Task,
        folder: Path,
        environ: Mapping[str, str],
        *,
        private: bool,
        in_threads: bool = False,
    ) -> None:
        self.reaper = 0
        self.folder = folder
        self._address = address
        self._ranks = task.world_size
        task_file = folder / "task.msgpack"
        request = {
            "task": str(task_file),
            "world_size": task.world_size,
            "environ": environment(task, environ),
            "cwd": task.cwd or os.getcwd(),
            "sys_path": list(task.sys_path),
            "private": private,
            "threads": in_threads,
        }
        self.control = connect(address)
        try:
            write_whole(task_file, msgspec.msgpack.encode(task))
            self.output, write = os.pipe()
            read, self._gate = os.pipe()
            try:
                content = json.dumps(request).encode() + b"\n"
                sent = socket.send_fds(self.control, [content], [write, read])
                self.control.sendall(content[sent:])
            except BaseException:
                os.close(self.output)
                os.close(self._gate)
                raise
            finally:
                os.close(write)
                os.close(read)
        except BaseException:
            self.control.close()
            raise

    def release(self) -> None:
        """Lets the ranks begin the program."""
        with contextlib.suppress(BrokenPipeError):  # the ranks died; their supervisor reports it
            os.write(self._gate, bytes(self._ranks))

    def end(self) -> None:
        """Ends the ranks of a group that will not be run."""
        with Group(self, self.folder, self._ranks):
            pass

    def reap(self, *, by_force: bool) -> None:
        """Closes this process's descriptors of the group.

        With `by_force`, kills the group's reaper first.  The reaper is a child of the fork server,
        which collects its exit status.
        """
        if by_force and self.reaper:
            os.kill(self.reaper, 9)
        self.control.close()
        os.close(self.output)
        os.close(self._gate)

    def launcher(self) -> int:
        """0: the reaper itself forks the ranks."""
        return 0

    def death_reason(self) -> str:
        """A clause that says how the reaper of this group ended, or else how the server did."""
        note = Path(self._address) / f"reaper-{self.reaper}"
        until = time.monotonic() + 2.0
        while self.reaper and time.monotonic() < until:
            try:
                how = note.read_text()
            except OSError:
                time.sleep(0.01)
                continue
            note.unlink(missing_ok=True)
            return f"the fork server died ({how})"
        return _last_death(self._address) or "the fork server died"


def _last_death(address: str) -> str:
    """The log's line on the last server that died; "" if there is none.

    The keeper, the process that starts the server and starts it again if it dies, writes the log.
    """
    try:
        lines = (Path(address) / "log.txt").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    deaths = [line for line in lines if line.startswith("the fork server died")]
    return deaths[-1] if deaths else ""


def _given_up(address: str) -> str:
    """The end of the keeper's log, if it gave up restarting the server; else ""."""
    folder = Path(address)
    if not (folder / "gave-up").exists():
        return ""
    lines = (folder / "log.txt").read_text(errors="replace").splitlines()
    return " / ".join(lines[-4:])


def _warn(text: str) -> None:
    warnings.warn(text, TrainsafeWarning, stacklevel=3)


def make(setup: LaunchSetup, stop: threading.Event) -> WarmLauncher:
    """The launcher `warm` of this pytest process; all processes of a run share one fork server."""
    address, server = fork_server(setup, stop)
    return WarmLauncher(address, network=setup.network, warn=setup.tell, server=server)


def fork_server(setup: LaunchSetup, stop: threading.Event) -> tuple[str, WarmServer | None]:
    """The address of the run's fork server, and the server if this process started it."""
    if setup.controller == os.getpid():
        server = early.take() or WarmServer.start()
        return server.address, server
    setup.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    address_file = setup.folder / "warm-address"
    with wait_lock(setup.folder / "warm-lock", stop):
        if address_file.exists():
            return address_file.read_text(), None
        server = WarmServer.start(controller=setup.controller)
        address_file.write_text(server.address)
        return server.address, server
