"""The main program of a rank: `python -m pytest_trainsafe.launch.rank TASKFILE`, under torchrun.

It runs the task, writes the outcome for the supervisor, and waits for the other ranks before it
exits.  `forkserver/forked_rank.py` calls the same `main` in a forked process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from pytest_trainsafe.core.rank import Rank, become, current_rank
from pytest_trainsafe.launch import data
from pytest_trainsafe.launch.console import breakpoints
from pytest_trainsafe.launch.files import (
    CANNOT_WRITE,
    OUTCOME_PREFIX,
    Outcome,
    RankFiles,
    write_whole,
)
from pytest_trainsafe.launch.loading import run_task
from pytest_trainsafe.launch.supervise.error_text import error_text, own_text, type_name
from pytest_trainsafe.launch.task import Task

if TYPE_CHECKING:
    from pytest_trainsafe.launch.collectives.flight_save import FlightRecorder
    from pytest_trainsafe.launch.collectives.ledger import Ledger

_PR_SET_PDEATHSIG = 1


def main(task_file: Path, prepared: Callable[[], None] | None = None) -> int:
    """Runs the task of `task_file` as the rank in torchrun's environment; returns the exit code.

    `prepared` is called once torch.distributed is instrumented, before the program is imported.
    """
    _die_with_the_agent()
    me = Rank.of(os.environ)
    become(me)
    rank = me.rank
    files = RankFiles(task_file.parent, rank)
    torchruns_stderr = os.dup(2)
    try:
        _redirect(files)
        task = msgspec.msgpack.decode(task_file.read_bytes(), type=Task)
        outcome = _run(task, files, prepared)
        flush()
        files.write_outcome(outcome)
    except OSError as error:
        report_through_pipe(torchruns_stderr, rank, error)
        return CANNOT_WRITE
    _wait_for_the_others(task_file.parent, task.world_size, failed=outcome.status != "ok")
    return 0 if outcome.status == "ok" else 1


def _die_with_the_agent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _redirect(files: RankFiles) -> None:
    """Redirects the output of the rank and its children to files.

    Also makes SIGUSR1 and SIGTERM write the rank's stacks to a file.
    """
    files.folder.mkdir(parents=True, exist_ok=True)
    for stream, path in ((1, files.stdout), (2, files.stderr)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(fd, stream)
        os.close(fd)
    stacks = files.stacks.open("ab", buffering=0)
    faulthandler.enable(file=stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    # torchrun ends the other ranks of a failed one by SIGTERM: dump their stacks first.
    faulthandler.register(signal.SIGTERM, file=stacks, all_threads=True, chain=True)
    atexit.register(stacks.close)


def _run(task: Task, files: RankFiles, prepared: Callable[[], None] | None) -> Outcome:
    recorders: list[FlightRecorder] = []

    def program() -> bytes:
        ledger, recorder = _prepare(task, files)
        recorders.append(recorder)
        if prepared is not None:
            prepared()
        value = data.encode(run_task(task), f"the value that rank {files.rank} returned")
        breakpoints.end()
        ledger.finish()
        return value

    outcome = outcome_of(files, program)
    for each in recorders:
        each.save()
    return outcome


def outcome_of(files: RankFiles, program: Callable[[], bytes]) -> Outcome:
    """The outcome of a rank whose `program` returns its value, encoded.

    Also prints the error that the program raises, as Python does.
    """
    try:
        value = program()
    except BaseException as raised:
        breakpoints.end()
        error = breakpoints.explained(raised, files.rank)
        text = error_text(error)
        _print_error(files, text)
        return Outcome(
            rank=files.rank,
            status="raised",
            at=time.monotonic(),
            error_type=type_name(error),
            error=own_text(error),
            traceback=text,
        )
    return Outcome(rank=files.rank, status="ok", at=time.monotonic(), value=value)


def _print_error(files: RankFiles, text: str) -> None:
    """Appends text to the rank's stderr file, even if the program replaced `sys.stderr` or fd 2."""
    flush()
    with contextlib.suppress(OSError), files.stderr.open("a", encoding="utf-8") as stderr:
        stderr.write(text)


def flush() -> None:
    """Flushes the standard streams.

    A program may close these streams, or replace them by None or any object.  Output that is not
    flushed is then lost, but that is not a failure of the program.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _prepare(task: Task, files: RankFiles) -> tuple[Ledger, FlightRecorder]:
    import torch

    from pytest_trainsafe.launch.collectives import flight_save, ledger
    from pytest_trainsafe.launch.resources import temporary

    breakpoints.install(task, files.rank, files.folder.parent)
    temporary.provide(files.temporary)
    # Before the program is imported, because it may bind the functions that these replace.
    installed = ledger.install(files.ledger, files.blocked), flight_save.install(files)
    if task.device == "cuda":
        local_rank, found = current_rank().local_rank, torch.cuda.device_count()
        if local_rank >= found:
            raise RuntimeError(
                f"the task needs one CUDA device for each of {task.world_size} ranks, "
                f"but {found} are visible; use fewer ranks or device='cpu'"
            )
        torch.cuda.set_device(local_rank)
    write_whole(files.started, str(os.getpid()).encode())
    return installed


def _wait_for_the_others(group: Path, world_size: int, *, failed: bool) -> None:
    """Waits until every rank has an outcome; a successful rank stops waiting when one has failed.

    A rank that exits early closes connections that a slower rank is still setting up
    ("connectFullMesh failed"), and a failed rank that exits makes torchrun end the others at once.
    There is no time limit here: the supervisor ends the group at the deadline.
    """
    missing = {rank: RankFiles(group, rank) for rank in range(world_size)}
    pause = 0.0005
    while True:
        for rank, files in list(missing.items()):
            outcome = files.read_outcome()
            if outcome is None:
                continue
            if outcome.status != "ok" and not failed:
                return
            del missing[rank]
        if not missing:
            return
        time.sleep(pause)  # most others end soon after
        pause = min(2 * pause, 0.005)


def report_through_pipe(stderr: int, rank: int, error: OSError) -> None:
    """Reports why there is no outcome file, through torchrun's pipe, which needs no disk."""
    before = error.__context__
    cause = f", after {type_name(before)}: {own_text(before)}" if before else ""
    outcome = Outcome(
        rank=rank,
        status="raised",
        at=time.monotonic(),
        error_type=type(error).__name__,
        error=f"{error}, while the rank wrote its outcome{cause}"[:1000],
    )
    line = b"\n" + OUTCOME_PREFIX.encode() + msgspec.json.encode(outcome) + b"\n"
    os.write(stderr, line)


def leave(code: int) -> NoReturn:
    """Exits without running destructors of process groups, which may wait for peers."""
    try:
        atexit._run_exitfuncs()
        flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    leave(main(Path(sys.argv[1])))
