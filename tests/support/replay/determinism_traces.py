"""Traces that a test writes by hand, with operators and reads from outside of the process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.operators import OperatorCount, OperatorEvent, OutsideRead
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import StepEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest


def loss(step: int, microbatch: int = 0) -> TensorId:
    return TensorId(step, microbatch, "loss", "", "loss")


#: What a rank records: tensors by name, in order, and other events.
Rank = Sequence[
    tuple[TensorId, torch.Tensor] | StepEvent | OperatorEvent | OperatorCount | OutsideRead
]


def written(path: Path, *ranks: Rank) -> Trace:
    """A trace of dp ranks that hold what is given."""
    point = Point.of(dp=len(ranks))
    spec = RunSpec(program="a_program:train", axes=point.values, dtype="float32")
    write_manifest(path, manifest_of(spec, "cpu"))
    for number, events in enumerate(ranks):
        writer = RankWriter(path, number)
        for event in events:
            if isinstance(event, tuple):
                writer.add_tensor(event[0], event[1], (), "default")
            else:
                writer.add(event)
        writer.close()
    return Trace.open(path)


def operator(outputs: int = 1, inputs: int = 1, name: str = "aten.mul.Tensor", **more: Any):
    return OperatorEvent(name, 0, f"{inputs:032x}", f"{outputs:032x}", **more)
