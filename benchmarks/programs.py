"""Functions that benchmarks run in ranks. As a script under torchrun, this file runs `empty`."""

from __future__ import annotations

import functools
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pytest_trainsafe.core.rank import Rank
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.sweep.validity import requires


def empty() -> None:
    """Only imports torch, as every training program must."""
    import torch

    assert torch.__version__


@requires(*gpt.train.trainsafe_rules)  # type: ignore[attr-defined]  # set by its decorator
def train(ctx: Any, report: str, layers: int = 2) -> None:
    """The reference GPT; at the end each rank writes its peak memory into the folder `report`."""
    from _measure import peak_memory

    gpt.train(ctx, layers=layers)
    figures = {"point": ctx.point.id, "dtype": str(ctx.dtype), "mib": peak_memory()}
    Path(report, f"{os.getpid()}.json").write_text(json.dumps(figures))


def step_seconds(
    directory: str, repetitions: int, steps: int, sizes: dict[str, int], dtype: str = "float32"
) -> dict[str, dict[str, list[float]]]:
    """Trains the reference GPT on one device in turns: bare, recording sketches, recording in full.

    Returns, for each of the three ways, the `seconds` of each step and the `bytes` per step of
    each trace. The first step of each training is omitted, because it allocates memory that later
    steps use again.
    """
    import torch

    from pytest_trainsafe.record.assignment import Assignment
    from pytest_trainsafe.record.context import Context
    from pytest_trainsafe.record.program import record
    from pytest_trainsafe.record.unrecorded import Unrecorded
    from pytest_trainsafe.trace.run_spec import RunSpec

    spec = RunSpec(program="gpt.train", dtype=dtype)
    found: dict[str, dict[str, list[float]]] = {
        what: {"seconds": [], "bytes": []} for what in ("bare", "sketch", "full")
    }

    def train(ctx: Any, what: str) -> None:
        timed = Timed(ctx)
        gpt.train(timed, steps=steps, **sizes)  # type: ignore[arg-type]  # stands in for a Context
        found[what]["seconds"] += timed.seconds[1:]

    for number in range(repetitions):
        for what in found:
            folder = Path(directory, f"{what}-{number}")
            if what == "bare":
                before = torch.get_default_dtype()
                torch.set_default_dtype(getattr(torch, dtype))
                train(Context(spec, Unrecorded(), Rank()), what)
                torch.set_default_dtype(before)
                continue
            recorded = msgspec.structs.replace(spec, record=what)
            record(
                Assignment(spec=recorded, trace=str(folder)), functools.partial(train, what=what)
            )
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            found[what]["bytes"].append(size / steps)
            shutil.rmtree(folder)
    return found


def losses(point: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> dict[str, list[float]]:
    """Trains the reference GPT at a Point without recording; returns each step's loss and seconds.

    A loss is the mean over the micro-batches of this rank: all of them, unless dp divides them.
    """
    import torch

    from pytest_trainsafe.record.context import Context
    from pytest_trainsafe.record.unrecorded import Unrecorded
    from pytest_trainsafe.trace.run_spec import RunSpec

    spec = RunSpec(program="gpt.train", axes=tuple(point.items()), dtype=dtype)
    timed = Timed(Context(spec, Unrecorded(), Rank()))
    torch.manual_seed(0)
    gpt.train(timed, **arguments)  # type: ignore[arg-type]  # stands in for a Context
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return {"losses": timed.losses, "seconds": timed.seconds}


class Timed:
    """A Context that measures the seconds of its steps, with recording, and keeps the losses."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self._reported: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @contextmanager
    def step(self) -> Iterator[int]:
        began = time.perf_counter()
        with self._ctx.step() as number:
            yield number
        self.seconds.append(time.perf_counter() - began)
        self.losses.append(sum(self._reported) / len(self._reported))
        self._reported.clear()

    def loss(self, value: Any, index: int | None = None) -> None:
        self._ctx.loss(value, index)
        self._reported.append(float(value))


if __name__ == "__main__":
    empty()
