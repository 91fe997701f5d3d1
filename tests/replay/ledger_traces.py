"""Writes traces that hold nothing but RNG ledgers, draw by draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import DrawEvent, Phase
from pytest_trainsafe.trace.schema import Event, Manifest
from pytest_trainsafe.trace.writer import RankWriter, write_manifest

#: What a rank writes, by its coordinates.
Ledger = Callable[[dict[str, int]], Iterable[Event]]


def state(number: int) -> str:
    """A state that is another for every number."""
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
    """A dropout that draws from the state of a number."""
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


def write(path: Path, point: Point, ledger: Ledger) -> Trace:
    """Write a trace at a Point, and open it."""
    manifest = Manifest(
        program="a_program:train",
        point=dict(point.values),
        world_size=point.world_size,
        dtype="float32",
        device="cpu",
        seed=0,
    )
    write_manifest(path, manifest)
    for rank in range(point.world_size):
        writer = RankWriter(path, rank)
        for event in ledger(point.coordinates(rank)):
            writer.add(event)
        writer.close()
    return Trace.open(path)
