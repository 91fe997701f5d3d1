"""Writes traces that contain only RNG ledgers, draw by draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import torch

from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import DrawEvent, Phase
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import TensorEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

#: Gives the events that a rank writes, from its coordinates.
Ledger = Callable[[dict[str, int]], Iterable[msgspec.Struct]]


def state(number: int) -> str:
    """A generator state, different for each number."""
    return f"{number:016x}.1"


def mask(
    number: int,
    *,
    module: str = "drop",
    microbatch: int | None = 0,
    step: int = 0,
    shape: tuple[int, ...] = (4, 8),
    phase: Phase = "forward",
) -> DrawEvent:
    """A dropout's draw from the state of `number`."""
    return DrawEvent(
        "torch cpu",
        phase,
        state(number),
        state(number + 1),
        "bernoulli_.float",
        step=step,
        microbatch=microbatch,
        module=module,
        at="model.py:7",
        shape=shape,
    )


def write(
    path: Path,
    point: Point,
    ledger: Ledger,
    output: Callable[[dict[str, int]], torch.Tensor] | None = None,
) -> Trace:
    """Write a trace at a Point, and open it.

    `output` gives what the module "drop" returns on a rank in the first micro-batch.
    """
    spec = RunSpec(
        program="a_program:train",
        axes=point.values,
        mesh=point.mesh.declared,
        dtype="float32",
    )
    write_manifest(path, manifest_of(spec, "cpu"))
    for rank in range(point.world_size):
        writer = RankWriter(path, rank)
        for event in ledger(point.coordinates(rank)):
            writer.add(event)
        if output is not None:
            id = TensorId(0, 0, "activation", "drop", "output")
            writer.add_tensor(id, output(point.coordinates(rank)))
        writer.close()
    return Trace.open(path)


def hold(
    trace: Trace,
    id: TensorId,
    number: Callable[[dict[str, int]], int],
    layout: Layout,
    shape: tuple[int, ...] = (4, 4),
) -> None:
    """Let every rank hold a tensor without values; ranks with equal numbers hold equal ones."""
    for rank in trace.ranks:
        hash = f"{number(rank.coordinates):032x}"
        rank.tensors[id] = TensorEvent(0, id, "float32", shape, hash, layout, "dtensor")
