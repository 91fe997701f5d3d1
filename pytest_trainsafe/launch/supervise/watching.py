"""Finds ranks that wait forever or are suspended, from /proc and the ranks' files.

Called by `supervise` while it waits, to end a group early that can only run into its timeout.
"""

from __future__ import annotations

import contextlib
import operator
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pytest_trainsafe.launch.collectives.collective import LedgerError, read_ledger
from pytest_trainsafe.launch.collectives.deadlock import deadlock
from pytest_trainsafe.launch.collectives.ledger_check import check_ledgers
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.supervise.blocked import read_standing

#: seconds for which ranks must be idle before their ledgers are checked for endless waits
_STUCK = 3.0
#: seconds for which a deadlock must last unchanged before it is reported
_UNCHANGED = 2.0
#: the part of one processor that an idle rank may use
_HARDLY = 0.05
#: at how many looks in a row a process must be suspended to count as such, and seconds between
#: them.  Looks and not seconds: this process may have been suspended with it.
_SUSPENDED, _BETWEEN = 9, 0.5


class Watched(Protocol):
    """The attributes of a rank that are used here; see `supervise.RankState`."""

    pid: int
    files: RankFiles

    @property
    def running(self) -> bool:
        """Whether the rank has neither reported an outcome nor ended."""
        ...


class Idle:
    """For how many `seconds` the processes of some ranks have hardly used the processor.

    A rank that waits in gloo still uses a hundredth of one: its threads wake now and then.
    A rank that waits for a processor is not idle: on a busy machine it may get none for seconds.
    The kernel counts such a wait only when it ends, so that one which is ready to run at two looks
    in a row counts as waiting as well.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ticks: list[int] = []
        self._ready: list[bool] = []
        self._since = 0.0
        self._next = 0.0
        self._deadlocked: object = None

    def look(self, ranks: Sequence[Watched], now: float) -> None:
        """Count what the ranks that still run have used."""
        states = [_stat(rank.pid) for rank in ranks]
        ticks = [_ticks(rank.pid, stat) for rank, stat in zip(ranks, states, strict=True)]
        ready = [stat[:1] == ["R"] for stat in states]
        starved = any(map(operator.and_, self._ready, ready))
        self._ready = ready
        allowed = 2 + _HARDLY * os.sysconf("SC_CLK_TCK") * (now - self._since)
        same = len(ticks) == len(self._ticks)
        if (
            not same
            or starved
            or any(b - a > allowed for a, b in zip(self._ticks, ticks, strict=True))
        ):
            self._ticks, self._since, self._next = ticks, now, _STUCK
            self._deadlocked = None
        self.seconds = now - self._since

    def in_vain(self, ranks: Sequence[Watched]) -> bool:
        """Whether the ledgers of all ranks show that the idle ones wait forever.

        Checked first after some seconds, then less and less often, since ledgers may be long.
        """
        if self.seconds <= self._next:
            return False
        try:
            ledgers = [read_ledger(rank.files.ledger) for rank in ranks]
        except LedgerError:  # reported when the group has ended
            return False
        calls = [made for made, _ in ledgers]
        # This cannot be too early: a group that disagrees has failed, whatever happens next.
        if check_ledgers(calls, [finished for _, finished in ledgers]):
            return True
        standings = [read_standing(rank.files.blocked) for rank in ranks]
        waits = deadlock(calls, standings, [not rank.running for rank in ranks])
        found = standings if waits else None
        if waits and found == self._deadlocked:
            return True
        self._deadlocked = found
        self._next = self.seconds + _UNCHANGED if waits else self._next * 2
        return False


class Suspended:
    """Which processes have been suspended by a signal (SIGSTOP, state T) for some seconds.

    One that a debugger has stopped is not: its state is t, or it has a tracer.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._next = 0.0

    def look(self, pids: Sequence[int], now: float) -> set[int]:
        """Those of the processes that count as suspended now."""
        if now >= self._next:
            self._next = now + _BETWEEN
            self._seen = {pid: self._seen.get(pid, 0) + 1 for pid in pids if is_suspended(pid)}
        return {pid for pid, looks in self._seen.items() if looks >= _SUSPENDED}


def is_suspended(pid: int) -> bool:
    """Whether a signal has suspended the process, and no debugger holds it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields.get("State", "").startswith("T") and fields.get("TracerPid", "0") == "0"


def resume(pid: int) -> None:
    """Let a process go on that a signal has suspended."""
    if pid and is_suspended(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def _ticks(pid: int, fields: Sequence[str]) -> int:
    """Clock ticks that the process has used, or its main thread has waited for a processor.

    -1 where there is no such process.
    """
    return int(fields[11]) + int(fields[12]) + _waited(pid) if fields else -1


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()


def _waited(pid: int) -> int:
    """Clock ticks that the main thread was ready to run and had no processor.

    0 where the kernel keeps no such statistics.
    """
    try:
        nanoseconds = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return nanoseconds * os.sysconf("SC_CLK_TCK") // 10**9
