"""DeepSpeed's engine trains in ranks that run in turn: its adapter names what belongs to a rank."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch import Launcher, Task, ThreadsLauncher, WarmLauncher, raise_for_failure
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec, arguments_of
from pytest_trainsafe.trace.writer import manifest_of, write_manifest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)

PROGRAM = "pytest_trainsafe.reference_models.deepspeed_bugs.programs.small:train"


def recorded(launcher: Launcher, folder: Path, stage: int) -> list[dict[str, str]]:
    """By rank, the hash of each recorded tensor."""
    spec = RunSpec(
        program=PROGRAM,
        axes=(("dp", 2), ("zero", stage)),
        arguments=arguments_of({"framework": "deepspeed"}),
        dtype="float32",
        adapters=BUILT_IN,
    )
    trace = folder / "trace"
    write_manifest(trace, manifest_of(spec, "cpu"))
    assigned = msgspec.to_builtins(Assignment(spec=spec, trace=str(trace)))
    task = Task.of("pytest_trainsafe.record.program:run", assigned, world_size=2)
    raise_for_failure(launcher.run(task, timeout=120, workdir=folder))
    found = Trace.open(trace).ranks
    return [{str(id): event.hash for id, event in rank.tensors.items()} for rank in found]


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_an_engine_trains_bit_for_bit_as_in_processes(
    stage: int, warm: WarmLauncher, threads: ThreadsLauncher, tmp_path: Path
) -> None:
    """With a sharded optimizer, and with sharded parameters, gradients and optimizer."""
    processes = recorded(warm, tmp_path / "warm", stage)
    in_turn = recorded(threads, tmp_path / "threads", stage)
    assert in_turn == processes
    assert len(in_turn[0]) > 100
