"""Forked ranks train bit for bit as torchrun's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch import Launcher, Task, TorchrunLauncher, WarmLauncher
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import Manifest
from pytest_trainsafe.trace.writer import write_manifest

PROGRAM = "pytest_trainsafe.reference_models.gpt:train"


def hashes(launcher: Launcher, folder: Path) -> list[list[tuple[TensorId, str]]]:
    """Every recorded tensor and its hash, by rank, in the order of dataflow."""
    trace = folder / "trace"
    what: dict[str, Any] = {
        "program": PROGRAM,
        "point": {"tp": 2},
        "dtype": "float32",
        "device": "cpu",
        "seed": 3,
    }
    write_manifest(trace, Manifest(**what, world_size=2))
    spec = msgspec.to_builtins(RunSpec(**what, adapters=BUILT_IN, trace=str(trace)))
    task = Task.of("pytest_trainsafe.record.program:run", spec, world_size=2)
    launcher.run(task, timeout=120, workdir=folder).raise_for_failure()
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
