"""What the stages of a pipeline recorded is told in the order in which it came about."""

from __future__ import annotations

from pathlib import Path

import torch

from pytest_trainsafe.align.dataflow import in_dataflow
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import INITIAL, Kind, Manifest, TensorId
from pytest_trainsafe.trace.writer import RankWriter, write_manifest

#: What a rank writes of one step of two micro-batches, as it happens under 1F1B.
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


def record(path: Path, stages: int) -> Trace:
    manifest = Manifest(
        program="p", point={"pp": stages}, world_size=stages, dtype="float32", device="cpu", seed=0
    )
    write_manifest(path, manifest)
    for rank in range(stages):
        writer = RankWriter(path, rank)
        module = f"layer{rank}"
        writer.add_tensor(TensorId(INITIAL, None, "param", module, "weight"), torch.ones(2))
        for index, kind in KINDS:
            owner = "" if kind == "grad_norm" else module
            writer.add_tensor(TensorId(0, index, kind, owner, "t"), torch.ones(2))
        writer.close()
    return Trace.open(path)


def test_stages_go_forward_and_backward_in_turn(tmp_path: Path) -> None:
    told = [(id.kind, id.microbatch, id.module) for id in in_dataflow(record(tmp_path / "t", 2))]

    assert told == [
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


def test_a_rank_by_itself_tells_things_as_they_happened(tmp_path: Path) -> None:
    trace = record(tmp_path / "t", 1)

    assert in_dataflow(trace) == list(trace.ids())
