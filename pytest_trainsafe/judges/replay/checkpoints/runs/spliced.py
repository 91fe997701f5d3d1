"""Joins two Traces: the steps before a checkpoint, and the replayed steps."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch

from pytest_trainsafe.judges.replay.checkpoints.events import ReplayCheckpointEvent, RestartEvent
from pytest_trainsafe.judges.replay.checkpoints.runs.replayed import split_of
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import InputEvent, ModuleEvent, StepEvent, TensorEvent
from pytest_trainsafe.trace.tensors.sketch import Values


@dataclass(slots=True)
class SplicedTrace(Trace):
    """Reads the tensors of steps before `first` from `earlier`, and the others from `later`."""

    earlier: Trace | None = None
    later: Trace | None = None
    first: int = 0

    def with_ranks(self, ranks: list[RankTrace]) -> Trace:
        """See `Trace.with_ranks`."""
        made = SplicedTrace(self.path, self.manifest, ranks)
        made.earlier, made.later, made.first = self.earlier, self.later, self.first
        return made

    def load(self, rank: int, event: TensorEvent) -> torch.Tensor:
        """See `Trace.load`."""
        return self._part(event).load(rank, event)

    def sketch(self, rank: int, event: TensorEvent) -> Values:
        """See `Trace.sketch`."""
        return self._part(event).sketch(rank, event)

    def _part(self, event: TensorEvent) -> Trace:
        part = self.later if event.id.step >= self.first else self.earlier
        assert part is not None
        return part


def spliced(earlier: Trace, later: Trace, first: int) -> Trace:
    """The Trace of `earlier` up to the checkpoint before step `first`, continued by `later`."""
    ranks = [
        _joined(before, after, first)
        for before, after in zip(earlier.ranks, later.ranks, strict=True)
    ]
    return SplicedTrace(
        path=later.path,
        manifest=earlier.manifest,
        ranks=ranks,
        problems=list(later.problems),
        earlier=earlier,
        later=later,
        first=first,
    )


def _joined(before: RankTrace, after: RankTrace, first: int) -> RankTrace:
    kept = before.events[: split_of(before, ReplayCheckpointEvent, first)]
    restart = split_of(after, RestartEvent, first)
    joined = RankTrace(before.rank, before.coordinates)
    joined.sketches, joined.manifest, joined.complete = (
        after.sketches,
        before.manifest,
        after.complete,
    )
    for event in kept:
        _add(joined, event)
    known = [event for event in kept if _step(event) is None]
    for number, event in enumerate(after.events):
        step = _step(event)
        if (step is None and event not in known) or (
            step is not None and (number >= restart and step >= first)
        ):
            _add(joined, event)
    return joined


def _step(event: msgspec.Struct) -> int | None:
    """The step of an event; None if it belongs to no step."""
    if isinstance(event, TensorEvent):
        return event.id.step
    step = getattr(event, "step", None)
    return step if isinstance(step, int) else None


def _add(rank: RankTrace, event: msgspec.Struct) -> None:
    match event:
        case TensorEvent():
            rank.tensors[event.id] = event
        case ModuleEvent():
            rank.modules[event.module] = event
        case InputEvent():
            rank.inputs.append(event)
        case StepEvent():
            rank.steps.append(event)
        case _:
            rank.facts.setdefault(type(event), []).append(event)
    rank.events.append(event)
