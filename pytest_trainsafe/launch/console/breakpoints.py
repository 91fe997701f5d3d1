"""What `breakpoint()` and `pdb.set_trace()` do in a rank.  Called by `launch/rank.py`.

The rank that the user named runs pdb on pytest's terminal (`debugger.py`).  In other ranks a
breakpoint has no effect, and if the user named none, it is an error that says what to do.
"""

from __future__ import annotations

import datetime
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.core.code_files import is_stdlib, line_of
from pytest_trainsafe.core.rank.state import keep_per_rank
from pytest_trainsafe.launch.console.breakpoint_error import BreakpointError
from pytest_trainsafe.launch.task import Task

if TYPE_CHECKING:
    from pytest_trainsafe.launch.console.debugger import Debugger

#: The time limit of collectives that other ranks call while one is in its debugger.
_PATIENCE = datetime.timedelta(days=7)

_debugger: Debugger | None = None
keep_per_rank(__name__, "_debugger")


def install(task: Task, rank: int, group: Path) -> None:
    """Replaces what `breakpoint()` and `pdb.set_trace()` do in this rank.

    `group` is the folder of the group.  If any rank may debug, collectives get a longer default
    time limit.
    """

    def stop(*_: object, header: str | None = None, **__: object) -> None:
        if os.environ.get("PYTHONBREAKPOINT") == "0":  # as Python's own hook
            return
        frame = sys._getframe(1)
        if task.debug is None:
            raise BreakpointError(_advice(f"rank {rank} called breakpoint()", line_of(frame), rank))
        if task.debug == rank:
            _the_debugger(task, rank, group).stop_at(frame, header)

    sys.breakpointhook = stop
    if task.debug is not None:
        import pdb  # slow

        from torch.distributed import distributed_c10d

        pdb.set_trace = stop
        for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
            setattr(distributed_c10d, name, _PATIENCE)


def end() -> None:
    """Gives the terminal back, if this rank has it: the program has ended."""
    if _debugger is not None:
        sys.settrace(None)
        _debugger.give_back()


def explained(error: BaseException, rank: int) -> BaseException:
    """The error itself; what to do instead, if it is the end of a debugger without a terminal."""
    if type(error).__name__ != "BdbQuit":
        return error
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_stdlib(frame.filename)] or frames
    where = f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown line"
    text = _advice(f"rank {rank} started a debugger without a terminal", where, rank)
    return BreakpointError(text).with_traceback(error.__traceback__)


def _advice(what: str, where: str, rank: int) -> str:
    return (
        f"{what} at {where}; run pytest with --trainsafe-debug {rank} to debug rank {rank} of the "
        "candidate in the terminal, or remove the call"
    )


def _the_debugger(task: Task, rank: int, group: Path) -> Debugger:
    global _debugger
    if _debugger is None:
        from pytest_trainsafe.launch.console.debugger import Debugger

        _debugger = Debugger(rank, task.world_size, group, task.live or "")
    return _debugger
