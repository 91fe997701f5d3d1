"""Stands in for the RNG ledger of a Run that keeps none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from pytest_trainsafe.judges.replay.rng.events.events import SWITCHED_OFF, Phase
from pytest_trainsafe.judges.replay.rng.instrument.noted import EventSink
from pytest_trainsafe.record.program_dtype import random_operators


def _undisturbed(
    name: str, call: Callable[..., Any], keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return call(keys, *args, **kwargs)


class NoLedger:
    """Replaces the ledger if none is kept: its methods do nothing, and the trace says so."""

    def __init__(self, writer: EventSink) -> None:
        writer.add(SWITCHED_OFF)

    @contextmanager
    def recording(self, through: random_operators.Through | None = None) -> Iterator[None]:
        without = through is None or random_operators.why_not()
        with (
            nullcontext()
            if without
            else random_operators.intercepted(_undisturbed, through=through)
        ):
            yield

    def watch(self, names: Mapping[nn.Module, str], roots: Sequence[nn.Module]) -> None: ...

    def boundary(self) -> None: ...

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        yield

    def states(self) -> dict[str, str]:
        return {}

    def look(self) -> None: ...
