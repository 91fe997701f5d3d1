"""Supervision: starts a group below a reaper, waits for its ranks, and ends all its processes.

Used by launchers.  It installs no signal handlers and changes nothing in the calling process,
so several threads may each supervise a group.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED
from pytest_trainsafe.launch.collectives.blocked import UNKNOWN_STATE, WaitState, read_wait_state
from pytest_trainsafe.launch.console.attend import Attendance
from pytest_trainsafe.launch.files import OUTCOME_PREFIX, Outcome, RankFiles
from pytest_trainsafe.launch.resources import temporary
from pytest_trainsafe.launch.supervise.processes import Processes
from pytest_trainsafe.launch.supervise.shared import SharedProcess
from pytest_trainsafe.launch.supervise.watching import Idle, Suspended, is_suspended, resume

_POLL = 0.05
#: If all remaining ranks are idle for so many seconds after a failure, the group ends before the
#: end of the grace period.
_IDLE = 1.0
#: Seconds in which the launcher must end after all ranks of a group have ended without a failure.
#: A launcher that takes longer is ended, and then what is left of the group is not reported.
_LAUNCHER = 20.0
#: Seconds in which a reaper that has reported must end all processes of the group.
_SWEEP = 20.0
#: Seconds to wait for a reaper that has never reported; if it starts later, it ends by itself.
_UNHEARD = 0.5


@dataclass
class RankState:
    """What the supervisor knows about one rank.  Times are those of the monotonic clock."""

    rank: int
    files: RankFiles
    pidfd: int | None = None
    pid: int = 0
    outcome: Outcome | None = None
    exited_at: float | None = None
    exit_code: int | None = None
    suspended: bool = False
    wait_state: WaitState = UNKNOWN_STATE

    @property
    def running(self) -> bool:
        """Whether the rank has neither reported an outcome nor ended."""
        return self.outcome is None and self.exited_at is None


@dataclass
class Supervision:
    """What happened to a group.  Times are those of the monotonic clock.

    `reason` says why the group ended: every rank is "done", one "failed", the "deadline" passed,
    not all ranks began in time ("startup"), ranks are "stuck" in calls that cannot complete, a rank
    or the launcher is "suspended" by a signal, the "launcher" itself ended, or the caller made a
    "request".  `problem` says how the reaper died, if it did, or that the launcher is suspended,
    and `refused` why the reaper did not start the group.  `told` are sentences of ranks that share
    a process on why they are stuck.
    `leftovers` are processes that had to be killed at the end; `log` is the launcher's output.
    """

    began: float
    ended: float = 0.0
    reason: str = ""
    ranks: list[RankState] = field(default_factory=list)
    leftovers: tuple[str, ...] = ()
    log: str = ""
    problem: str = ""
    refused: str = ""
    told: tuple[str, ...] = ()


class Group:
    """A running group.  Leaving the `with` block ends all its processes.

    `attendance` shows the ranks' output, and lets one of them debug; None for neither.  `shared` is
    set if all ranks are threads of one process.
    """

    def __init__(
        self,
        processes: Processes,
        folder: Path,
        world: int,
        attendance: Attendance | None = None,
        shared: SharedProcess | None = None,
    ) -> None:
        self.state = Supervision(time.monotonic())
        self.state.ranks = [RankState(rank, RankFiles(folder, rank)) for rank in range(world)]
        self._log_path = folder / "launcher.log"
        self._launcher_exit: int | None = None
        self._messages = b""
        self._left_alone = False
        self._silent = False
        self._processes = processes
        self._attendance = attendance
        self._shared = shared
        self._control = processes.control
        self._control.setblocking(False)
        os.set_blocking(processes.output, False)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sweep()
        if self._attendance is not None:
            self._attendance.end()
        for rank in self.state.ranks:
            if rank.pidfd is not None:
                os.close(rank.pidfd)
            with contextlib.suppress(OSError):  # a tool that copies the folder would block on it
                rank.files.ask.unlink()
            temporary.remove(rank.files.temporary)
        self.state.ended = time.monotonic()

    def wait(
        self, *, timeout: float, startup_timeout: float, grace: float, stop: threading.Event
    ) -> None:
        """Waits until every rank is done, or until waiting longer is useless.

        All times are in seconds.  After a first failure, the other ranks have `grace` seconds to
        fail on their own, or less if they are all idle.  Waiting also ends early if idle ranks
        disagree on a collective or are stuck in calls that cannot complete, or if a signal has
        suspended a rank.  Ranks that still run then write their stacks.  While a rank is in its
        debugger, only the end of the ranks and `stop` count.
        """
        state = self.state
        limit, begun = time.monotonic() + startup_timeout, False
        failed_at: float | None = None
        idle, suspended = Idle(), Suspended()
        now = time.monotonic()
        while not state.reason:
            self._update()
            before, now = now, time.monotonic()
            debugs = self._attendance is not None and self._attendance.in_debugger()
            if debugs:
                limit += now - before
                failed_at = None if failed_at is None else failed_at + now - before
                idle, suspended = Idle(), Suspended()
            if not begun and all(rank.pid for rank in state.ranks):
                limit, begun = now + timeout, True
            running = [rank for rank in state.ranks if rank.running]
            failed = any(
                rank.exited_at is not None if rank.outcome is None else rank.outcome.status != "ok"
                for rank in state.ranks
            )
            if failed and failed_at is None:
                failed_at = now
            idle.update(running, now)
            pids = {rank.pid: rank for rank in running if rank.pid}
            launcher, stopped = self._processes.launcher(), 0
            for pid in suspended.update([*pids, launcher, self._processes.reaper], now):
                if pid in pids:
                    pids[pid].suspended = True
                elif pid == launcher:
                    stopped = pid
                else:
                    resume(pid)  # the reaper, which is not part of the program
            if state.told:
                state.reason = "stuck"
            elif not running:
                state.reason = "failed" if failed else "done"
            elif self._launcher_exit is not None or self._left_alone:
                state.reason = "failed" if failed and not self._left_alone else "launcher"
            elif debugs and not stop.is_set():
                self._sleep()
            elif failed_at is not None and (now > failed_at + grace or idle.seconds > _IDLE):
                state.reason = "failed"
            elif stop.is_set():
                state.reason = "request"
            elif now > limit:
                state.reason = "deadline" if begun else "startup"
            elif stopped or any(rank.suspended for rank in running):
                state.reason = "suspended"
                if stopped:
                    state.problem = (
                        f"the process that started the ranks (id {stopped}) was suspended by a "
                        "signal (SIGSTOP or similar, process state T) and not resumed"
                    )
            elif begun and idle.wait_forever(state.ranks):
                state.reason = "stuck"
            else:
                self._sleep()
        for rank in state.ranks:
            rank.suspended = rank.running and is_suspended(rank.pid)
            # Read it now: calls fail while the group is being ended, because peers are gone.
            rank.wait_state = read_wait_state(rank.files.blocked)
        # The caller does not need evidence, and ranks that share a process have given it.
        if state.reason != "request" and not state.told:
            self._collect_evidence()
        for pid in (self._processes.launcher(), self._processes.reaper):
            resume(pid)
        if state.reason == "failed":
            # torchrun reports a rank's exit code only when it ends itself
            self._wait_for_exits(3.0)
        elif state.reason == "done":
            self._wait_for_launcher(_LAUNCHER)
        if self._left_alone and not state.refused:
            state.problem = self._processes.death_reason()

    def _sleep(self) -> None:
        fds = [] if self._left_alone else [self._control.fileno()]
        if self._launcher_exit is None:
            fds += [] if self._silent else [self._processes.output]
            fds += [r.pidfd for r in self.state.ranks if r.pidfd is not None and r.running]
        select.select(fds, [], [], _POLL)

    def _update(self) -> None:
        """Reads what has changed since the last call."""
        self._read_output()
        for message in self._read_control():
            self._take(message)
        for rank in self.state.ranks:
            ended = rank.exit_code is not None
            if rank.pid == 0 and (pid := rank.files.read_pid()) is not None:
                rank.pid = pid
                try:
                    rank.pidfd = os.pidfd_open(pid)
                except OSError:
                    ended = True  # or the file has another number
            if rank.exited_at is None and rank.pidfd is not None:
                ended = ended or _has_ended(rank.pidfd)
            # In this order: a rank writes its outcome before its process ends.
            if rank.outcome is None:
                rank.outcome = rank.files.read_outcome()
            if ended and rank.exited_at is None and self._ends(rank):
                rank.exited_at = time.monotonic()

    def _ends(self, rank: RankState) -> bool:
        """Whether the end of a process is the end of this rank.

        If ranks share a process that died, the one whose turn it was is the one that died.
        """
        if self._shared is None:
            return True
        self.state.told = self.state.told or self._shared.stuck() or ()
        if rank.outcome is None and (self.state.told or rank.rank != self._shared.turn()):
            return False
        rank.exit_code = self._launcher_exit if rank.outcome is None else None
        return True

    def _take(self, message: dict[str, object]) -> None:
        """Updates the state by one message of the reaper."""
        state = self.state
        if "rank" in message:
            state.ranks[int(str(message["rank"]))].exit_code = int(str(message["exit"]))
            if all(rank.exit_code is not None for rank in state.ranks):
                self._launcher_exit = 0
        elif "exit" in message:
            self._launcher_exit = int(str(message["exit"]))
            if self._shared is not None:
                for rank in state.ranks:
                    if rank.exited_at is not None and rank.outcome is None:
                        rank.exit_code = self._launcher_exit
        elif "refused" in message:
            state.refused = str(message["refused"])
            self._launcher_exit = 0
        elif "reaper" in message:
            self._processes.reaper = int(str(message["reaper"]))

    def _collect_evidence(self) -> None:
        """Makes every rank that still runs save its stacks and its flight record, if it can.

        Requests the stacks first and the records afterwards: a thread saves a rank's record, and
        stacks that are dumped while a Python thread starts or ends are garbage.
        """
        running = [
            rank
            for rank in self.state.ranks
            # A suspended rank would respond only after it has continued with the program.
            if rank.running and rank.pidfd is not None and not rank.suspended
        ]
        signalled = []
        for rank in running:
            assert rank.pidfd is not None
            before = _size(rank.files.stacks)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(rank.pidfd, signal.SIGUSR1)
                signalled.append((rank.files.stacks, before))
        until, sizes = time.monotonic() + 2.0, [0]
        while signalled and time.monotonic() < until:
            last, sizes = sizes, [_size(path) - before for path, before in signalled]
            if all(sizes) and sizes == last:
                break
            time.sleep(0.02)
        records = [rank.files.flight for rank in running if _ask(rank.files.ask)]
        until = time.monotonic() + 2.0
        while time.monotonic() < until and not all(path.exists() for path in records):
            time.sleep(0.02)

    def _wait_for_launcher(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._launcher_exit is None and not self._left_alone and time.monotonic() < until:
            self._sleep()
            self._update()

    def _wait_for_exits(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._launcher_exit is None and not self._left_alone and time.monotonic() < until:
            if all(rank.exit_code is not None for rank in self.state.ranks if rank.exited_at):
                return
            self._sleep()
            self._update()

    def _sweep(self) -> None:
        """Ends every process of the group, and stores in `state.leftovers` which had to be killed.

        Stores none if the launcher itself still runs, because then its ranks may run too.  The wait
        is short for a reaper that has never reported: this reaper has started nothing, because its
        fork server is starting or does not respond.  Before this reaper would fork ranks, it reads
        our request or finds the socket closed.
        """
        tolerated = self._launcher_exit is None
        with contextlib.suppress(OSError):
            self._control.send(b"sweep\n")
        resume(self._processes.reaper)
        began = time.monotonic()
        self._take_leftovers(tolerated)
        while not self._left_alone:
            if time.monotonic() > began + (_SWEEP if self._processes.reaper else _UNHEARD):
                break
            select.select([self._control.fileno()], [], [], _POLL)
            self._read_output()
            self._take_leftovers(tolerated)
        self._read_output()
        self._processes.reap(by_force=not self._left_alone)
        for rank, code in _exit_codes(self.state.log).items():
            if rank < len(self.state.ranks):
                self.state.ranks[rank].exit_code = code

    def _take_leftovers(self, tolerated: bool) -> None:
        for message in self._read_control():
            if "reaper" in message:
                self._take(message)
            found = message.get("leftovers")
            if isinstance(found, list) and not tolerated:
                self.state.leftovers = tuple(map(str, found))

    def _read_control(self) -> list[dict[str, object]]:
        try:
            while chunk := self._control.recv(65536):
                self._messages += chunk
            self._left_alone = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self._left_alone = True
        *lines, self._messages = self._messages.split(b"\n")
        return [json.loads(line) for line in lines]

    def _read_output(self) -> None:
        """Keeps the launcher's output, and extracts ranks' outcomes from it."""
        chunks = []
        while True:
            try:
                chunk = os.read(self._processes.output, 65536)
            except BlockingIOError:
                break
            if not chunk:
                self._silent = True
                break
            chunks.append(chunk)
        if not chunks:
            return
        content = b"".join(chunks)
        self.state.log = (self.state.log + content.decode("utf-8", "replace"))[-200_000:]
        try:
            with self._log_path.open("ab") as file:
                file.write(content)
        except OSError:  # a full disk must not keep us from ending the group
            pass
        for found in re.finditer(f"^{OUTCOME_PREFIX}(.*)\n", self.state.log, re.MULTILINE):
            with contextlib.suppress(*MALFORMED):  # a program may print similar lines
                outcome = msgspec.json.decode(found[1].encode(), type=Outcome)
                if outcome.rank in range(len(self.state.ranks)):
                    self.state.ranks[outcome.rank].outcome = outcome


def _has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _ask(pipe: Path) -> bool:
    """Asks a rank for its flight record; False if the rank does not listen."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # it has created no group, or its torch has no recorder
        return False
    try:
        os.write(fd, b"?")
    finally:
        os.close(fd)
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _exit_codes(log: str) -> dict[int, int]:
    """Exit codes by rank, which torchrun's log has after lines like "rank : 1 (local_rank: 1)"."""
    summary = re.findall(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)", log)
    first = re.findall(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", log)
    return {int(rank): int(code) for code, rank in first} | {
        int(rank): int(code) for rank, code in summary
    }
