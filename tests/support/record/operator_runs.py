"""A training in this process that records the operators of one step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import manifest_of, write_manifest


def recorded(folder: Path, call: Callable[[], object], step: int) -> Trace:
    """A training that makes the call at its beginning, and records the operators of `step`."""

    def train(ctx: Any) -> None:
        call()
        model = torch.nn.Linear(2, 1).to(ctx.dtype)
        ctx.watch(model)
        for _ in range(2):
            with ctx.step():
                for index in ctx.microbatches(1):
                    with ctx.microbatch(index):
                        model(torch.rand(1, 2, dtype=ctx.dtype)).sum().backward()

    spec = RunSpec(program="a_program:train", dtype="float64", operators=step)
    write_manifest(folder, manifest_of(spec, "cpu"))
    program.record(Assignment(spec=spec, trace=str(folder)), train)
    return Trace.open(folder)
