"""The rank's side of the flight record: saves torch's flight recorder to the rank's file.

`wrap` runs before the program is imported, as that of the ledger does, and `install` in each rank.
The record is saved when the program ends, for whatever
reason, and when the supervisor asks for it while the main thread is stuck in a collective: a
background thread waits for that request on the rank's pipe.  Nothing here may disturb the program
or make it fail, because the record is evidence and not a result.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

from pytest_trainsafe.compat.distributed.process_groups import flight_recorder, known_groups
from pytest_trainsafe.core.rank.state import keep_per_rank
from pytest_trainsafe.launch.files import RankFiles, write_whole

#: Signals that report a thread's own fault; blocking them would hide it.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


class FlightRecorder:
    """torch's flight recorder in this rank, and the file to which its record is saved."""

    def __init__(self, files: RankFiles) -> None:
        self._files = files
        self._groups: dict[str, tuple[int, ...] | None] = {}
        self._lock = threading.Lock()
        self._watched = False
        self._pid = os.getpid()

    def save(self) -> None:
        """Writes the record; does nothing if torch has no recorder or no group was ever created."""
        dump = flight_recorder()
        if dump is None or not self._lock.acquire(timeout=1.0):
            return
        try:
            self.note_groups()
            if not self._groups:
                return
            record = msgspec.Raw(dump(True, False))  # include completed collectives
            content = msgspec.json.encode({"groups": self._groups, "recorder": record})
            write_whole(self._files.flight, content)
        except (OSError, RuntimeError, TypeError):
            pass  # the failure is reported even without the record
        finally:
            self._lock.release()

    def note_groups(self) -> None:
        """Records the members of all groups; torch forgets a group when it is destroyed."""
        for name, ranks in known_groups():
            known = self._groups.setdefault(name, ranks)
            self._groups[name] = ranks if known == ranks else None

    def watch(self) -> None:
        """Starts a thread that saves the record once, when the supervisor writes to the pipe.

        Called when the first group is created: gloo has threads of its own from then on, so one
        more makes no difference to a program that forks.  The thread is a bare one, which
        `threading` neither lists nor joins.
        """
        if self._watched or flight_recorder() is None or os.getpid() != self._pid:
            return
        self._watched = True
        try:
            os.mkfifo(self._files.ask)
            # Open for reading and writing, so that read() blocks while there is no writer.
            pipe = os.open(self._files.ask, os.O_RDWR | os.O_CLOEXEC)
            _thread.start_new_thread(self._answer, (pipe,))
        except (OSError, RuntimeError):
            pass

    def _answer(self, pipe: int) -> None:
        # Leave the program's signals to its own threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        with contextlib.suppress(OSError):
            # Read only once: a program that closes all descriptors may reuse this number.
            if os.read(pipe, 1):
                self.save()


#: The recorder of this rank, and whether torch's functions of this process are wrapped.
_current: FlightRecorder | None = None
keep_per_rank(__name__, "_current")
_wrapped = False


def install(files: RankFiles) -> FlightRecorder:
    """Returns the FlightRecorder of this rank, after connecting it with torch.distributed.

    From now on, `init_process_group` starts the recorder's background thread (`watch`), and
    `destroy_process_group` first records the members of all groups (`note_groups`).
    """
    global _current
    recorder = _current = FlightRecorder(files)
    wrap()
    return recorder


def wrap() -> None:
    """Wraps torch's functions for the recorder that this process may install; once."""
    global _wrapped
    if _wrapped:
        return
    _wrapped = True
    joined = _joined(c10d.init_process_group)
    c10d.init_process_group = dist.init_process_group = joined
    # `init_device_mesh` creates the default group through this name, bound at import.
    device_mesh.init_process_group = joined  # type: ignore[attr-defined]
    left = _left(c10d.destroy_process_group)
    c10d.destroy_process_group = dist.destroy_process_group = left


def _joined(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _current is not None:
            _current.watch()
        return result

    return wrapped


def _left(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _current is not None:
            _current.note_groups()
        return original(*args, **kwargs)

    return wrapped
