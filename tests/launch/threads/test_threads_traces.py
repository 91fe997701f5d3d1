"""Ranks that run in turn train bit for bit as processes do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch import Launcher, Task, ThreadsLauncher, WarmLauncher, raise_for_failure
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.trace.facts import CollectiveEvent
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import manifest_of, write_manifest

Axes = tuple[tuple[str, int], ...]


def recorded(
    launcher: Launcher, folder: Path, model: str, axes: Axes
) -> list[tuple[list[tuple[TensorId, str]], list[CollectiveEvent]]]:
    """By rank, each recorded tensor and its hash, and each collective with its line."""
    trace = folder / "trace"
    program = f"pytest_trainsafe.reference_models.{model}:train"
    spec = RunSpec(program=program, axes=axes, dtype="float32", seed=3, adapters=BUILT_IN)
    write_manifest(trace, manifest_of(spec, "cpu"))
    assigned = msgspec.to_builtins(Assignment(spec=spec, trace=str(trace)))
    world = spec.point.world_size
    task = Task.of("pytest_trainsafe.record.program:run", assigned, world_size=world)
    raise_for_failure(launcher.run(task, timeout=120, workdir=folder))
    return [
        (
            [(id, event.hash) for id, event in rank.tensors.items()],
            rank.events_of(CollectiveEvent),
        )
        for rank in Trace.open(trace).ranks
    ]


@pytest.mark.parametrize(
    ("model", "axes"),
    [
        ("gpt", (("tp", 2),)),
        ("gpt", (("dp", 2), ("zero", 1))),
        ("llama", (("pp", 2), ("cp", 2))),
        ("moe", (("dp", 2), ("ep", 2), ("tp", 2))),
    ],
)
def test_traces_of_threads_and_processes_are_equal_bit_by_bit(
    model: str, axes: Axes, warm: WarmLauncher, threads: ThreadsLauncher, tmp_path: Path
) -> None:
    """Where every sum has two terms; benchmarks/bench_threads_equal.py has more Points."""
    processes = recorded(warm, tmp_path / "warm", model, axes)
    in_turn = recorded(threads, tmp_path / "threads", model, axes)
    assert in_turn == processes
    assert len(in_turn[0][0]) > 100
    assert in_turn[0][1]
    assert in_turn[0][0] != in_turn[1][0]
