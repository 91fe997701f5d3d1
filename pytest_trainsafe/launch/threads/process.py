"""The process of a group whose ranks are threads: the counterpart of `launch/rank.py`.

The fork server forks it.  It runs the ranks in turn and writes each rank's outcome, output, ledger
and stacks into the same files as a process of a rank does.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

import msgspec
import torch

from pytest_trainsafe.core.rank import Rank, become
from pytest_trainsafe.core.schedule import Schedule
from pytest_trainsafe.launch import data, rank
from pytest_trainsafe.launch.collectives import ledger
from pytest_trainsafe.launch.console import breakpoints
from pytest_trainsafe.launch.files import CANNOT_WRITE, RankFiles, write_whole
from pytest_trainsafe.launch.forkserver import forked_rank
from pytest_trainsafe.launch.loading import run_task
from pytest_trainsafe.launch.resources import temporary
from pytest_trainsafe.launch.supervise.shared import TurnFile, write_stuck
from pytest_trainsafe.launch.task import Task
from pytest_trainsafe.launch.threads.exchange import Exchange, Output, parts
from pytest_trainsafe.launch.threads.install import install
from pytest_trainsafe.launch.threads.refusals import refuse_frameworks
from pytest_trainsafe.launch.threads.schedule import Order
from pytest_trainsafe.launch.threads.turns import Turns

#: The exit code of a process whose ranks could not go on.
STUCK = 76


def run_ranks(
    task_file: Path, environs: Sequence[Mapping[str, str]], cwd: str, gate: int
) -> NoReturn:
    """Runs the task as one rank for each environment in the process that was forked, and exits.

    Prepares the ranks, then waits for a byte from the pipe `gate` before the first one begins.
    """
    code = 70  # EX_SOFTWARE, if this function itself fails
    try:
        forked_rank.detach()
        forked_rank.become(environs[0], cwd)
        task = msgspec.msgpack.decode(task_file.read_bytes(), type=Task)
        before = len(sys.modules)
        code = _Group(task, task_file.parent).run(environs, gate)
        if code == 0:  # the modules are now those of the rank that ended last
            forked_rank.tell_imports(RankFiles(task_file.parent, 0), before)
    except BaseException:
        traceback.print_exc()
    rank.leave(code)


def _stream(descriptor: int, errors: str) -> TextIO:
    """A rank's own object for a standard stream, which it may close without closing the stream."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), errors=errors)


class _Group:
    """The ranks of one process."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task, self.folder = task, folder
        self.files = [RankFiles(folder, number) for number in range(task.world_size)]
        self._stderr = os.dup(2)  # before ranks redirect it
        self._turn = TurnFile(folder)
        self._output = Output()
        self._exchange = Exchange(parts(self._output))
        schedule = task.schedule or Schedule()
        self._turns = Turns(Order(schedule), self._switch, self._stuck)
        self._failed = self._unwritten = False
        install(self._turns, schedule)

    def run(self, environs: Sequence[Mapping[str, str]], gate: int) -> int:
        """Runs all ranks; returns the exit code."""
        for files, environ in zip(self.files, environs, strict=True):
            self._exchange.prepare(files.rank, partial(self._begin, files, environ))
        refuse_frameworks()
        signal.signal(signal.SIGUSR1, self._write_stacks)
        for files in self.files:
            write_whole(files.started, str(os.getpid()).encode())
        if not os.read(gate, 1):
            os._exit(1)  # every writer has closed the pipe
        os.close(gate)
        # As often as in processes of their own, each of which collects after so many objects.
        first, *others = gc.get_threshold()
        gc.set_threshold(first * len(self.files), *others)
        self._turns.run([partial(self._live, files) for files in self.files])
        if self._unwritten:
            return CANNOT_WRITE
        return 1 if self._failed else 0

    def _begin(self, files: RankFiles, environ: Mapping[str, str]) -> None:
        """Makes the state of the process with which this rank begins."""
        files.folder.mkdir(parents=True, exist_ok=True)
        os.environ.clear()
        os.environ.update(environ)
        become(Rank.of(os.environ))
        sys.argv[:] = [rank.__file__, str(self.folder / "task.msgpack")]
        out, err = (
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            for path in (files.stdout, files.stderr)
        )
        self._output.redirect(out, err, files.stacks.open("ab", buffering=0))
        # A rank may close its streams.
        sys.stdout, sys.stderr = _stream(1, "surrogateescape"), _stream(2, "backslashreplace")
        breakpoints.install(self.task, files.rank, self.folder)
        if files.rank == 0:  # its children are children of the one process
            temporary.provide(files.temporary)

    def _live(self, files: RankFiles) -> None:
        """Runs one rank, in its thread."""
        with torch.autograd.set_multithreading_enabled(False):
            torch.set_num_threads(self.task.threads)
            outcome = rank.outcome_of(files, partial(self._program, files))
        rank.flush()
        if self._turns.is_stopped:
            return  # the exception is that of the stop
        self._failed = self._failed or outcome.status != "ok"
        try:
            files.write_outcome(outcome)
        except OSError as error:
            self._unwritten = True
            rank.report_through_pipe(self._stderr, files.rank, error)

    def _program(self, files: RankFiles) -> bytes:
        kept = ledger.install(files.ledger, files.blocked)
        value = data.encode(run_task(self.task), f"the value that rank {files.rank} returned")
        breakpoints.end()
        kept.finish()
        return value

    def _switch(self, before: int | None, after: int) -> None:
        self._exchange(before, after)
        self._turn.write(after)

    def _stuck(self, why: list[str]) -> None:
        """No rank can go on: tells the supervisor, unless a rank's failure explains it, and ends.

        The files that say in which call each rank waits are written already.
        """
        self._write_stacks()
        if not self._failed:
            write_stuck(self.folder, why)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1 if self._failed else STUCK)

    def _write_stacks(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Writes the stack of each rank's thread to its file, in the form of faulthandler."""
        frames = sys._current_frames()
        for rank_number, ident in self._turns.thread_ids().items():
            lines = [f"Thread 0x{ident:016x} (most recent call first):"]
            for each, line in traceback.walk_stack(frames.get(ident)):
                code = each.f_code
                lines.append(f'  File "{code.co_filename}", line {line} in {code.co_name}')
            with contextlib.suppress(OSError), self.files[rank_number].stacks.open("w") as file:
                file.write("\n".join(lines) + "\n")
