"""Stands in for the RNG ledger of a Run that keeps none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from pytest_trainsafe.judges.replay.rng.instrument.noted import EventSink
from pytest_trainsafe.record.program_dtype.interception import Through
from pytest_trainsafe.record.program_dtype.random_operators import drawn_through
from pytest_trainsafe.trace.rng.events import SWITCHED_OFF, Phase


class NoLedger:
    """Replaces the ledger if none is kept: its methods do nothing, and the trace says so."""

    def __init__(self, writer: EventSink) -> None:
        writer.add(SWITCHED_OFF)

    def recording(self, through: Through | None = None) -> AbstractContextManager[object]:
        return nullcontext() if through is None else drawn_through(through)

    def watch(self, names: Mapping[nn.Module, str], roots: Sequence[nn.Module]) -> None: ...

    def boundary(self) -> None: ...

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        yield

    def states(self) -> dict[str, str]:
        return {}

    def look(self) -> None: ...
