"""Finds calls by the program whose results differ between processes, such as of the clock.

`OutsideReads.profile` is the profile function that records them, for `operator_ledger`. `sealed`
shares the rule on which calls are the program's, so that what is recorded is what can be fixed.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from types import FrameType
from typing import Any

from pytest_trainsafe.core.code_files import STANDS_IN, TORCH, line_of, owner_of
from pytest_trainsafe.trace.operators import OutsideRead
from pytest_trainsafe.trace.writer import RankWriter

#: Maximum number of recorded reads from outside of the process, such as of the clock.
MAX_READS = 64

#: Built-in functions whose results differ between processes.  Maps a function's `__module__` and
#: `__qualname__` to its name in reports.
_OUTSIDE: dict[tuple[str | None, str], str] = {
    **{("time", name): f"time.{name}" for name in ("time", "time_ns", "monotonic", "monotonic_ns")},
    **{("time", name): f"time.{name}" for name in ("perf_counter", "perf_counter_ns")},
    **{("time", name): f"time.{name}" for name in ("process_time", "process_time_ns")},
    (None, "datetime.now"): "datetime.now",
    (None, "datetime.utcnow"): "datetime.utcnow",
    (None, "date.today"): "date.today",
    ("posix", "urandom"): "os.urandom",
    ("posix", "getpid"): "os.getpid",
    (None, "Random.seed"): "random.Random.seed(None)",
    (None, "Generator.seed"): "torch.Generator.seed",
    ("builtins", "id"): "id",
    ("_thread", "get_ident"): "threading.get_ident",
}

#: Functions that start a thread; the names depend on the version of Python.
_STARTS = frozenset({("_thread", "start_new_thread"), ("_thread", "start_joinable_thread")})

#: Files of the standard library that read random numbers of the system for their caller.  Other
#: files of it read them for themselves: `tempfile` for names, `multiprocessing` for keys.
_FOR_CALLERS = frozenset({"random.py", "secrets.py", "uuid.py"})


#: Files of the standard library that start threads for their caller: `threading`,
#: `concurrent.futures` and `multiprocessing.pool`.
_FOR_THREADS = frozenset({"threading.py", "thread.py", "pool.py"})


def program_frame(
    frame: FrameType | None, through: Collection[str] = _FOR_CALLERS
) -> FrameType | None:
    """The program's own frame that makes the call in `frame`; None if another's code makes it.

    The program makes the call itself, or through nothing but `torch.random`, functions of this
    package that stand in for what it calls, and the files `through` of the standard library, by
    default those of `random`, `secrets` and `uuid`.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        owner = owner_of(file)
        if owner == "project":
            return frame
        passes = (owner == "python" and os.path.basename(file) in through) or (
            owner == "ours" and frame.f_code.co_name == STANDS_IN
        )
        if not passes and file != f"{TORCH}random.py":
            return None
        frame = frame.f_back
    return None


class OutsideReads:
    """Records a rank's reads from outside of the process, each function and line once."""

    def __init__(self, writer: RankWriter) -> None:
        self._writer = writer
        self._reads: set[tuple[str, str]] = set()

    def called(self, frame: FrameType, function: Any, operators: int) -> None:
        """Records the call of a built-in `function` in `frame` if it reads an outside value.

        Also records that it starts a thread.
        `operators` is the number of operators that were recorded before it.
        """
        name = getattr(function, "__qualname__", "")
        key = getattr(function, "__module__", None), name
        starts = key in _STARTS
        what = "threading.Thread.start" if starts else _OUTSIDE.get(key)
        if what is None or len(self._reads) >= MAX_READS:
            return
        if name == "Random.seed" and frame.f_locals.get("a", 0) is not None:
            return  # a seed is given
        if name == "Generator.seed" and frame.f_code.co_filename == f"{TORCH}random.py":
            what = "torch.seed"
        theirs = program_frame(frame, _FOR_THREADS if starts else _FOR_CALLERS)
        if theirs is None:
            return
        read = what, line_of(theirs)
        if read not in self._reads:
            self._reads.add(read)
            self._writer.add(OutsideRead(*read, operators))
