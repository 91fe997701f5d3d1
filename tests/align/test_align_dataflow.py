"""`in_dataflow` sorts the tensors that pipeline stages recorded in the order of dataflow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.align.dataflow import in_dataflow
from pytest_trainsafe.core.tensor_id import INITIAL, Kind, TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

#: The tensors that a rank records in a step of two micro-batches, in the order of 1F1B.
KINDS: tuple[tuple[int | None, Kind], ...] = (
    (0, "activation"),
    (1, "activation"),
    (0, "activation_grad"),
    (0, "param_grad"),
    (1, "activation_grad"),
    (1, "param_grad"),
    (None, "main_grad"),
    (None, "grad_norm"),
    (None, "param"),
)

#: The same if the backwards are not marked: all gradients are written at the end of the step.
LATE = (*KINDS[:2], *KINDS[6:9], *KINDS[2:6])


def record(path: Path, stages: int, kinds: tuple[tuple[int | None, Kind], ...] = KINDS) -> Trace:
    manifest = manifest_of(RunSpec(program="p", axes=(("pp", stages),), dtype="float32"), "cpu")
    write_manifest(path, manifest)
    for rank in range(stages):
        writer = RankWriter(path, rank)
        module = f"layer{rank}"
        writer.add_tensor(TensorId(INITIAL, None, "param", module, "weight"), torch.ones(2))
        for index, kind in kinds:
            owner = "" if kind == "grad_norm" else module
            writer.add_tensor(TensorId(0, index, kind, owner, "t"), torch.ones(2))
        writer.close()
    return Trace.open(path)


def test_forwards_follow_the_stage_order_and_backwards_the_reverse_order(tmp_path: Path) -> None:
    order = [(id.kind, id.microbatch, id.module) for id in in_dataflow(record(tmp_path / "t", 2))]

    assert order == [
        ("param", None, "layer0"),
        ("param", None, "layer1"),
        ("activation", 0, "layer0"),
        ("activation", 0, "layer1"),
        ("activation_grad", 0, "layer1"),
        ("activation_grad", 0, "layer0"),
        ("param_grad", 0, "layer1"),
        ("param_grad", 0, "layer0"),
        ("activation", 1, "layer0"),
        ("activation", 1, "layer1"),
        ("activation_grad", 1, "layer1"),
        ("activation_grad", 1, "layer0"),
        ("param_grad", 1, "layer1"),
        ("param_grad", 1, "layer0"),
        ("main_grad", None, "layer0"),
        ("main_grad", None, "layer1"),
        ("grad_norm", None, ""),
        ("param", None, "layer0"),
        ("param", None, "layer1"),
    ]


@pytest.mark.parametrize("kinds", [KINDS, LATE], ids=["1f1b", "gradients at the end"])
def test_forward_and_backward_of_a_micro_batch_come_before_the_next_micro_batch(
    tmp_path: Path, kinds: tuple[tuple[int | None, Kind], ...]
) -> None:
    found = [(id.kind, id.microbatch) for id in in_dataflow(record(tmp_path / "t", 1, kinds))]

    assert found == [
        ("param", None),
        ("activation", 0),
        ("activation_grad", 0),
        ("param_grad", 0),
        ("activation", 1),
        ("activation_grad", 1),
        ("param_grad", 1),
        ("main_grad", None),
        ("grad_norm", None),
        ("param", None),
    ]


def test_micro_batches_of_one_stage_are_sorted_in_execution_order(tmp_path: Path) -> None:
    swapped = tuple((None if i is None else 1 - i, kind) for i, kind in KINDS)
    found = in_dataflow(record(tmp_path / "t", 1, swapped))

    assert [id.microbatch for id in found if id.kind == "activation"] == [1, 0]


@pytest.mark.parametrize("stages", [1, 2])
def test_unclipped_gradients_come_before_clipped_ones(tmp_path: Path, stages: int) -> None:
    path = tmp_path / "t"
    first: Kind = "unclipped_grad"
    trace = record(path, stages, ((None, "main_grad"), (None, first), (None, "param")))
    found = [id.kind for id in in_dataflow(trace) if id.step == 0]

    assert list(dict.fromkeys(found)) == ["unclipped_grad", "main_grad", "param"]
