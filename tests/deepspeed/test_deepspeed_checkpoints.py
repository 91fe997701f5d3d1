"""A training that goes on from a checkpoint, in new processes, is the uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.launch import Task, TorchrunLauncher
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import Manifest
from pytest_trainsafe.trace.writer import write_manifest

pytest.importorskip("deepspeed")

pytestmark = pytest.mark.slow

#: The step that the checkpoint is saved before.
SAVED = 2


def recorded(folder: Path, point: dict[str, Any], dtype: str, **arguments: Any) -> Trace:
    """The trace of a training in new ranks."""
    what: dict[str, Any] = {
        "program": "pytest_trainsafe.reference_models.deepspeed_resumed:train",
        "point": point,
        "dtype": dtype,
        "device": "cpu",
        "seed": 3,
    }
    trace = folder / "trace"
    ranks = int(point["dp"])
    write_manifest(trace, Manifest(**what, world_size=ranks))
    spec = RunSpec(**what, trace=str(trace), arguments=arguments)
    target = "pytest_trainsafe.record.program:run"
    task = Task.of(target, msgspec.to_builtins(spec), world_size=ranks)
    TorchrunLauncher().run(task, timeout=150, workdir=folder).raise_for_failure()
    return Trace.open(trace)


def hashes(trace: Trace, skipped: int = 0) -> list[dict[tuple[object, ...], str]]:
    """Every recorded tensor's hash, by rank, without the first steps; the later are renumbered.

    What a step leaves behind is what the next one begins with: -1.
    """
    found: list[dict[tuple[object, ...], str]] = []
    for rank in trace.ranks:
        found.append({})
        for id, event in rank.tensors.items():
            step = id.step - skipped
            lasting = id.kind in ("param", "master_param")
            if step < -1 or (step == -1 and not lasting):
                continue
            found[-1][(id.kind, id.path, id.call, step, id.microbatch)] = event.hash
    return found


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [*((stage, "float32") for stage in range(4)), (0, "bfloat16"), (3, "bfloat16")],
)
def test_a_resumed_training_is_the_uninterrupted_one_bit_by_bit(stage, dtype, tmp_path):
    point = {"dp": 2, "zero": stage}
    saved = str(tmp_path / "checkpoint")
    whole = recorded(tmp_path / "whole", point, dtype, save=saved, save_before=SAVED)
    resumed = recorded(tmp_path / "resumed", point, dtype, save=saved, first=SAVED)
    expected, found = hashes(whole, SAVED), hashes(resumed)
    assert found == expected
    kinds = {kind for kind, *_ in found[0]}
    assert {"param", "param_grad", "main_grad", "optimizer_state", "loss"} <= kinds
    begins = {key: hash for key, hash in hashes(whole)[0].items() if key[3] == -1}
    moved = [key for key, hash in begins.items() if found[0][key] != hash]
    assert len(moved) > len(begins) / 2  # it did not start afresh
