"""Finds ranks that wait forever or are suspended, from /proc and the ranks' files.

Called by the supervisor while it waits, so that it can end such a group before its timeout.
"""

from __future__ import annotations

import contextlib
import operator
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pytest_trainsafe.launch.collectives.blocked import read_wait_state
from pytest_trainsafe.launch.collectives.collective import LedgerError, read_ledger
from pytest_trainsafe.launch.collectives.deadlock import deadlock
from pytest_trainsafe.launch.collectives.ledger_check import check_ledgers
from pytest_trainsafe.launch.files import RankFiles

#: Seconds for which ranks must be idle before their ledgers are checked for endless waits.
_STUCK = 3.0
#: Seconds for which a deadlock must last unchanged before it is reported.
_UNCHANGED = 2.0
#: The fraction of one processor's time that an idle rank may use.
_IDLE_SHARE = 0.05
#: A process counts as suspended if `_CHECKS` checks in a row, `_CHECK_INTERVAL` seconds apart, find
#: it so.  Checks are counted, not time, because this process may have been suspended as well.
_CHECKS, _CHECK_INTERVAL = 9, 0.5


class Watched(Protocol):
    """The attributes of a rank that are used here; see `supervisor.RankState`."""

    pid: int
    files: RankFiles

    @property
    def running(self) -> bool:
        """Whether the rank has neither reported an outcome nor ended."""
        ...


class Idle:
    """Measures for how many `seconds` the processes of some ranks have been idle.

    A rank that waits in gloo still uses about a hundredth of a processor, because its threads wake
    up periodically.  A rank that waits for a processor is not idle: on a busy machine it may get
    none for seconds.  The kernel counts such a wait only when it ends, so a rank that is ready to
    run at two checks in a row counts as waiting for a processor as well.  Only the main
    thread's wait counts: gloo's threads wait for a processor each time they wake up, so that ranks
    on a busy machine would never be idle.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._pids: list[int] = []
        self._ticks: list[int] = []
        self._ready: list[bool] = []
        self._since = 0.0
        self._next = 0.0
        self._deadlocked: object = None

    def update(self, ranks: Sequence[Watched], now: float) -> None:
        """Updates the measurement; `ranks` are those that still run, `now` the monotonic time."""
        pids = [rank.pid for rank in ranks]
        same, self._pids = pids == self._pids, pids
        states = [_stat(pid) for pid in pids]
        ticks = [_ticks(pid, stat) for pid, stat in zip(pids, states, strict=True)]
        ready = [stat[:1] == ["R"] for stat in states]
        starved = any(map(operator.and_, self._ready, ready))
        self._ready = ready
        allowed = 2 + _IDLE_SHARE * os.sysconf("SC_CLK_TCK") * (now - self._since)
        if (
            not same  # a rank that begins has not been idle, however long it took to begin
            or starved
            or any(b - a > allowed for a, b in zip(self._ticks, ticks, strict=True))
        ):
            self._ticks, self._since, self._next = ticks, now, _STUCK
            self._deadlocked = None
        self.seconds = now - self._since

    def wait_forever(self, ranks: Sequence[Watched]) -> bool:
        """Whether the ledgers of all ranks show that the idle ranks wait forever.

        Reads the ledgers, which may be long, only after some idle seconds, and then at growing
        intervals.
        """
        if self.seconds <= self._next:
            return False
        try:
            ledgers = [read_ledger(rank.files.ledger) for rank in ranks]
        except LedgerError:  # reported when the group has ended
            return False
        calls = [made for made, _ in ledgers]
        # Not premature: a group that disagrees has failed, whatever happens next.
        if check_ledgers(calls, [finished for _, finished in ledgers]):
            return True
        wait_states = [read_wait_state(rank.files.blocked) for rank in ranks]
        waits = deadlock(calls, wait_states, [not rank.running for rank in ranks])
        found = wait_states if waits else None
        if waits and found == self._deadlocked:
            return True
        self._deadlocked = found
        self._next = self.seconds + _UNCHANGED if waits else self._next * 2
        return False


class Suspended:
    """Finds processes that a signal (SIGSTOP, state T) has suspended for some seconds.

    A process that a debugger has stopped does not count: its state is t, or it has a tracer.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._next = 0.0

    def update(self, pids: Sequence[int], now: float) -> set[int]:
        """Returns the ids of the processes that are suspended for some seconds.

        `now` is the monotonic time.  The states of the processes `pids` are read only if the last
        reading was long enough ago.
        """
        if now >= self._next:
            self._next = now + _CHECK_INTERVAL
            self._seen = {pid: self._seen.get(pid, 0) + 1 for pid in pids if is_suspended(pid)}
        return {pid for pid, checks in self._seen.items() if checks >= _CHECKS}


def is_suspended(pid: int) -> bool:
    """Whether a signal has suspended the process, and no debugger traces it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields.get("State", "").startswith("T") and fields.get("TracerPid", "0") == "0"


def resume(pid: int) -> None:
    """Continues a process that a signal has suspended."""
    if pid and is_suspended(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def _ticks(pid: int, fields: Sequence[str]) -> int:
    """Clock ticks that the process used, plus those its main thread waited for a processor.

    -1 if there is no such process.
    """
    return int(fields[11]) + int(fields[12]) + _waited(pid) if fields else -1


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; [] if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()


def _waited(pid: int) -> int:
    """Clock ticks for which the main thread was ready to run but had no processor.

    0 if the kernel keeps no such statistics.
    """
    try:
        nanoseconds = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return nanoseconds * os.sysconf("SC_CLK_TCK") // 10**9
