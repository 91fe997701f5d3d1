"""What the benchmarks run in ranks.  Started by torchrun itself, this file runs `empty`."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.sweep.validity import requires


def empty() -> None:
    """What no training program can do without: importing torch."""
    import torch

    assert torch.__version__


@requires(*gpt.train.trainsafe_rules)  # type: ignore[attr-defined]  # set by its decorator
def train(ctx: Any, report: str, layers: int = 2) -> None:
    """The reference GPT; at its end each rank writes the most memory it held into `report`."""
    from _measure import peak_memory

    gpt.train(ctx, layers=layers)
    figures = {"point": ctx.point.id, "dtype": str(ctx.dtype), "mib": peak_memory()}
    Path(report, f"{os.getpid()}.json").write_text(json.dumps(figures))


def step_seconds(
    directory: str, repetitions: int, steps: int, sizes: dict[str, int]
) -> dict[str, list[float]]:
    """Seconds of each step of the reference GPT on one device, recorded and bare, in turn.

    The first step of a training is left out: it allocates what later ones use again.
    """
    import torch

    from pytest_trainsafe.record.context import Context
    from pytest_trainsafe.record.current import Unrecorded
    from pytest_trainsafe.record.recorder import Recorder
    from pytest_trainsafe.record.spec import RunSpec
    from pytest_trainsafe.trace.writer import RankWriter

    spec = RunSpec(
        program="gpt.train", point={}, dtype="float32", device="cpu", seed=0, trace=directory
    )
    seconds: dict[str, list[float]] = {"recorded": [], "bare": []}
    for number in range(repetitions):
        torch.manual_seed(spec.seed)
        folder = Path(directory, str(number))
        writer = RankWriter(folder, 0)
        timed = Timed(Context(spec, Recorder(spec, writer)))
        gpt.train(timed, steps=steps, **sizes)  # type: ignore[arg-type]  # stands in for a Context
        writer.close()
        shutil.rmtree(folder)
        bare = Timed(Context(spec, Unrecorded()))
        gpt.train(bare, steps=steps, **sizes)  # type: ignore[arg-type]
        seconds["recorded"] += timed.seconds[1:]
        seconds["bare"] += bare.seconds[1:]
    return seconds


class Timed:
    """A Context that measures its steps, what is recorded at their end included."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @contextmanager
    def step(self) -> Iterator[int]:
        began = time.perf_counter()
        with self._ctx.step() as number:
            yield number
        self.seconds.append(time.perf_counter() - began)


if __name__ == "__main__":
    empty()
