"""Forked ranks train bit for bit as torchrun's do."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch import (
    Launcher,
    Task,
    TorchrunLauncher,
    WarmLauncher,
    raise_for_failure,
)
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import manifest_of, write_manifest

PROGRAM = "pytest_trainsafe.reference_models.gpt:train"


def hashes(launcher: Launcher, folder: Path) -> list[list[tuple[TensorId, str]]]:
    """Every recorded tensor and its hash, by rank, in the order of dataflow."""
    trace = folder / "trace"
    spec = RunSpec(program=PROGRAM, axes=(("tp", 2),), dtype="float32", seed=3, adapters=BUILT_IN)
    write_manifest(trace, manifest_of(spec, "cpu"))
    assigned = msgspec.to_builtins(Assignment(spec=spec, trace=str(trace)))
    task = Task.of("pytest_trainsafe.record.program:run", assigned, world_size=2)
    raise_for_failure(launcher.run(task, timeout=120, workdir=folder))
    return [
        [(id, event.hash) for id, event in rank.tensors.items()] for rank in Trace.open(trace).ranks
    ]


def test_traces_under_both_launchers_are_equal_bit_by_bit(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    forked = hashes(warm, tmp_path / "warm")
    execed = hashes(TorchrunLauncher(), tmp_path / "torchrun")
    assert forked == execed
    assert len(forked[0]) > 100
    assert forked[0] != forked[1]
