"""Verifies a Run that continued from a checkpoint against the trace that it continues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

import msgspec

from pytest_trainsafe.errors import ReplayMismatchError
from pytest_trainsafe.judges.replay.checkpoints.events import ReplayCheckpointEvent, RestartEvent
from pytest_trainsafe.judges.replay.checkpoints.runs.request import ReplayRequest, step_is_over
from pytest_trainsafe.sweep.point_summary import plural
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.rng.difference import advances, first_difference
from pytest_trainsafe.trace.rng.events import SWITCHED_OFF, LedgerGap
from pytest_trainsafe.trace.schema import StepEvent


def did_restart(later: Trace) -> bool:
    """Whether every rank of the replay `later` loaded the checkpoint."""
    return all(rank.events_of(RestartEvent) for rank in later.ranks)


def split_of(rank: RankTrace, kind: type[ReplayCheckpointEvent | RestartEvent], first: int) -> int:
    """The number of a rank's events up to and including its last one of `kind` for step `first`."""
    events = rank.events
    return max(
        number + 1 for number, e in enumerate(events) if isinstance(e, kind) and e.step == first
    )


def verify(request: ReplayRequest, later: Trace) -> str:
    """Compares the replay `later` with the original Run; returns a line that reports the result.

    The replay may be incomplete: only what it recorded is compared.  Raises ReplayMismatchError,
    which names the first different random draw, if the first replayed step draws other random
    numbers than the original.
    """
    earlier, first = request.trace, request.first
    draws = 0
    for before, after in zip(earlier.ranks, later.ranks, strict=True):
        original = advances(_first_step(before, ReplayCheckpointEvent, first))
        replayed = advances(_first_step(after, RestartEvent, first))
        whole = all(step_is_over(trace, before.rank, first) for trace in (earlier, later))
        difference = first_difference(original, replayed, whole=whole)
        if difference is not None:
            raise ReplayMismatchError(
                f"the replay of step {first} from {request.folder} does not draw the random "
                f"numbers that are recorded in {earlier.path}: on rank {before.rank} {difference}. "
                "If the program was changed, replay the program that saved the checkpoint. If "
                "not, the checkpoint lacks some state that determines this draw; add this state "
                "to ReplayCheckpoint(generators=..., states=...)"
            )
        draws += len(original)
    unseen = any(SWITCHED_OFF in rank.events_of(LedgerGap) for rank in earlier.ranks + later.ranks)
    drawn = f"{plural(draws, 'draw')} of step {first} verified against the ledger of the trace"
    if unseen:
        drawn = "no random draw was verified, because the ledger of draws was off"
    same = _same_tensors(earlier, later, first)
    return f"was replayed from the checkpoint before step {first}: {drawn}; {same}"


def _same_tensors(earlier: Trace, later: Trace, first: int) -> str:
    """A clause with the number of equal tensors in both Runs, or with the first unequal one."""
    equal, unequal = 0, ""
    for before, after in zip(earlier.ranks, later.ranks, strict=True):
        for id, event in before.tensors.items():
            there = after.tensors.get(id) if id.step >= first else None
            if there is None:
                continue
            if there.hash == event.hash:
                equal += 1
            elif not unequal:
                unequal = f"{id} on rank {before.rank}"
    if unequal:
        return f"{unequal} is the first tensor that differs"
    return f"{plural(equal, 'tensor')} of the replayed steps have the recorded bits"


def _first_step(
    rank: RankTrace, kind: type[ReplayCheckpointEvent | RestartEvent], first: int
) -> Iterator[msgspec.Struct]:
    """The events of step `first` that follow the rank's last event of `kind` for this step.

    In the original Run, events of `kind` record that a checkpoint was saved before the step; in the
    replay, they record that the rank restarted from the checkpoint.
    """
    events: Iterable[msgspec.Struct] = rank.events[split_of(rank, kind, first) :]
    return takewhile(lambda e: not (isinstance(e, StepEvent) and e.step == first), events)
