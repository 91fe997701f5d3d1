"""A training that goes on from a checkpoint, in new processes, is the uninterrupted one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.assertions import TrainsafeFailure, assert_equivalent
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.inject.perturb import EPSILON
from pytest_trainsafe.record.program import run
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec, arguments_of
from pytest_trainsafe.trace.writer import manifest_of, write_manifest

pytest.importorskip("deepspeed")

pytestmark = pytest.mark.slow

Record = Callable[..., Trace]


@pytest.fixture
def record(torchrun_group, tmp_path) -> Record:
    """Records a training in new ranks: its Point, its dtype, noise, and its arguments."""

    def recorded(point: dict[str, Any], dtype: str, noise: float = 0.0, **arguments: Any) -> Trace:
        spec = RunSpec(
            program="pytest_trainsafe.reference_models.deepspeed_resumed:train",
            arguments=arguments_of(arguments),
            point=Point.of(point),
            dtype=dtype,
            seed=3,
            perturbation=noise,
            adapters=BUILT_IN,
        )
        trace = tmp_path / f"trace-{len(list(tmp_path.glob('trace-*')))}"
        ranks = Point.of(point).world_size
        write_manifest(trace, manifest_of(spec, "cpu"))
        assigned = msgspec.to_builtins(Assignment(spec=spec, trace=str(trace)))
        torchrun_group.run(run, assigned, world_size=ranks)
        return Trace.open(trace)

    return recorded


def hashes(trace: Trace) -> list[dict[TensorId, str]]:
    """Every recorded tensor's hash, by rank."""
    return [{id: event.hash for id, event in rank.tensors.items()} for rank in trace.ranks]


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [*((stage, "float32") for stage in range(4)), (0, "bfloat16"), (3, "bfloat16")],
)
def test_a_resumed_training_is_the_uninterrupted_one_bit_by_bit(stage, dtype, record, tmp_path):
    point, folder = {"dp": 2, "zero": stage}, str(tmp_path / "checkpoints")
    whole = hashes(record(point, dtype, save=folder))
    assert hashes(record(point, dtype, load=folder)) == whole
    kinds = {id.kind for id in whole[0]}
    assert {"param", "param_grad", "main_grad", "optimizer_state", "loss"} <= kinds
    begins = {id: hash for id, hash in whole[0].items() if id.step == INITIAL}
    fresh = hashes(record(point, dtype, before=0, steps=1))[0]
    moved = [id for id, hash in begins.items() if fresh[id] != hash]
    assert len(moved) > len(begins) / 2  # neither of them started afresh


@pytest.mark.parametrize(
    ("dtype", "saved", "resumed"),
    [
        ("float32", {"dp": 2, "zero": 1}, {"dp": 4, "zero": 1}),
        ("float32", {"dp": 2, "zero": 3}, {"dp": 1, "zero": 3}),
        ("float32", {"tp": 2, "zero": 1}, {"dp": 2, "zero": 1}),
        ("float32", {"dp": 2, "zero": 1}, {"tp": 2, "zero": 1}),
        ("bfloat16", {"dp": 2, "zero": 1}, {"dp": 4, "zero": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else Point.of(value).id,
)
def test_a_universal_checkpoint_goes_on_in_another_layout(dtype, saved, resumed, record, tmp_path):
    folder = str(tmp_path / "checkpoints")
    whole = record(saved, dtype, save=folder, universal=True)
    noisy = record(saved, dtype, noise=EPSILON[dtype])
    again = record(resumed, dtype, load=folder, universal=True)
    assert_equivalent(again, whole, perturbed=noisy)


def test_a_universal_checkpoint_that_lost_a_moment_is_told(record, tmp_path):
    folder, point = str(tmp_path / "checkpoints"), {"dp": 2, "zero": 1}
    whole = record(point, "float32", save=folder, universal=True)
    noisy = record(point, "float32", noise=EPSILON["float32"])
    for moment in (Path(folder) / "universal").rglob("tokens.weight/exp_avg.pt"):
        spoil(moment)
    again = record({"dp": 4, "zero": 1}, "float32", load=folder, universal=True)
    with pytest.raises(TrainsafeFailure, match=r"tokens\.weight\.exp_avg · optimizer_state"):
        assert_equivalent(again, whole, perturbed=noisy)


def spoil(file: Path) -> None:
    """Set what a file of a universal checkpoint holds to zero."""
    import torch

    held = torch.load(file, weights_only=False)
    held["param"].zero_()
    torch.save(held, file)
