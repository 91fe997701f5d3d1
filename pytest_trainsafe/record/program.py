"""Runs and records a training program in a rank.  This is the task that a Run launches."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from pytest_trainsafe.compat import compiler
from pytest_trainsafe.compat.private import lacking
from pytest_trainsafe.core.prepared import decoder_of
from pytest_trainsafe.core.rank import Rank, current_rank
from pytest_trainsafe.core.rungs.rank_run import RankRun
from pytest_trainsafe.core.rungs.table import add_rungs, rung_named
from pytest_trainsafe.launch.collectives.ledger import following
from pytest_trainsafe.launch.loading import load_function, run_script
from pytest_trainsafe.launch.task import Function
from pytest_trainsafe.record.adapter import activate
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.current import set_context
from pytest_trainsafe.record.hooks.consequences import consequences
from pytest_trainsafe.record.hooks.module_hooks import eager
from pytest_trainsafe.record.program_dtype.random_operators import drawn_through
from pytest_trainsafe.record.reads.noting import Noting
from pytest_trainsafe.record.recorder import Recorder
from pytest_trainsafe.record.training.clipping import listening
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.tensors.sketch import Sketcher
from pytest_trainsafe.trace.writer import RankWriter, TraceWriteError

decoder_of(Assignment)  # at the import, which the ranks of a fork server share


def run(assigned: dict[str, Any]) -> dict[str, Any]:
    """Records one Run; returns how many seconds the program took and the Notes on what it read.

    `assigned` is an Assignment as plain data.  The Notes are plain data too, or None if nothing is
    noted.  Raises ProgramError if the program recorded no step, because there is then nothing to
    compare.
    """
    compiler.postpone()
    assignment = msgspec.convert(assigned, Assignment, strict=False)
    me, noting = current_rank(), None
    with contextlib.ExitStack() as around:
        if assignment.reads:
            noting = Noting(Path(f"{assignment.reads}-{me.rank}"))
            around.enter_context(noting.noted(_own_folders(assignment)))
        seconds = record(assignment, lambda ctx: _train(assignment, ctx), me)
    if dist.is_initialized():
        dist.destroy_process_group()
    noted = None if noting is None else msgspec.to_builtins(noting.notes())
    return {"seconds": seconds, "noted": noted}


def record(
    assignment: Assignment, train: Callable[[Context], object], me: Rank | None = None
) -> float:
    """Records what `train` does with a Context; returns how many seconds it took.

    `me` is the rank that the program runs as, by default the current one.

    An exception of `train` propagates.  The trace then has the events up to the exception, and no
    End event.
    """
    me, spec = me or current_rank(), assignment.spec
    activate(spec.adapters)
    if spec.rung:
        add_rungs({spec.dtype: spec.rung})
    rung = rung_named(spec.dtype)
    _seed(spec.seed)
    writer = _writer(assignment, me.rank)
    recorder = Recorder(assignment, writer)
    began, compiled = time.perf_counter(), compiler.compiled_regions()
    ctx = Context(spec, recorder, me, assignment.device)
    try:
        with contextlib.ExitStack() as around:
            for each in _around(recorder, ctx):
                around.enter_context(each)
            # Innermost, so that the program's operators reach a rung's dispatch mode first.
            enter = around.enter_context(rung.around(_rank_run(assignment, writer)))
            if rung.encloses:
                ctx.compute_in(enter)
                recorder.draws.enter = enter
            train(ctx)
    except BaseException:
        with contextlib.suppress(TraceWriteError):
            writer.flush()
        raise
    seconds = time.perf_counter() - began
    recorder.finish()
    for event in _facts(recorder, ctx, compiled):
        writer.add(event)
    writer.close()
    return seconds


def _seed(seed: int) -> None:
    """Seeds torch's generators."""
    if torch.accelerator.current_accelerator() is None:
        # A torch that was built for the CPU alone.  `torch.manual_seed` would also format the stack
        # of this call, for an error of CUDA's initialisation, and read source files for it.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _around(recorder: Recorder, ctx: Context) -> Iterator[AbstractContextManager[object]]:
    """What encloses a program, from the outside to the inside."""
    if recorder.spec.trusted:
        yield eager()
    yield recorder.default.installed()
    yield listening(recorder.before_clip)
    yield following(recorder.on_collective)
    if recorder.casts is not None:
        yield recorder.casts
    yield ctx.marks
    yield recorder.sites.constructions()
    if not recorder.spec.perturbation:  # a Run that only measures needs no facts
        yield recorder.zeroed.recording()
    if recorder.origins is not None:
        yield recorder.origins
    if recorder.spec.rewrite:
        yield recorder.modes.watched()
    if not recorder.instruments.has("rng"):  # the ledger draws through a function of its own
        yield drawn_through(recorder.draws.through)
    # Last, so that these change what the program computes before those above see it.
    yield recorder.instruments.within("around")


def _facts(recorder: Recorder, ctx: Context, compiled: int) -> Iterator[msgspec.Struct]:
    """What holds of a program that has ended; `compiled` is `compiled_regions()` at its start."""
    if recorder.casts is not None:
        yield from recorder.casts.found()
    for consequence in consequences(recorder.clock, compiled):
        yield NoteEvent("ran", consequence)
    for axis in sorted({*ctx.point.axes_read, *recorder.spec.keywords}):
        yield NoteEvent("read_axis", axis)
    for text in lacking():
        yield NoteEvent("not_compared", text)
    for word in sorted(ctx.used):
        yield NoteEvent("used", word)


def _rank_run(assignment: Assignment, writer: RankWriter) -> RankRun:
    """This rank's part of the Run, for the rung that encloses the program."""
    spec, followed = assignment.spec, assignment.replayed
    return RankRun(
        spec.seed,
        writer.rank,
        Path(assignment.trace),
        writer.add,
        spec.sample,
        Path(followed) if followed else None,
    )


def _own_folders(assignment: Assignment) -> tuple[str, ...]:
    """The folders that this package reads and writes itself while the program runs."""
    beside = (os.path.dirname(each) for each in (assignment.trace, assignment.reads))
    folders = (*beside, assignment.replayed, assignment.checkpoint, assignment.checkpoints)
    return tuple(each for each in folders if each)


def _writer(assignment: Assignment, number: int) -> RankWriter:
    spec, folder = assignment.spec, Path(assignment.trace)
    if spec.record == "full":
        rung = rung_named(spec.dtype)
        return RankWriter(folder, number, numbers=rung.arithmetic, enclosed=rung.encloses)
    sketcher = Sketcher(spec.point.coordinates(number), spec.point.sizes)
    return RankWriter(folder, number, sketcher, frozenset(spec.keep))


def _train(assignment: Assignment, ctx: Context) -> None:
    program = assignment.program
    if isinstance(program, Function):
        load_function(program)(ctx, **assignment.spec.keywords)
        return
    set_context(ctx)
    try:
        run_script(program)
    finally:
        set_context(None)
