"""Writes into the trace of a rank the collectives that the program calls on it."""

from __future__ import annotations

from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.training.reductions import called_at
from pytest_trainsafe.trace.facts import CollectiveEvent
from pytest_trainsafe.trace.writer import RankWriter


class CollectiveRecorder:
    """Writes an event for each collective that the program calls; with `callers`, who led to it."""

    def __init__(self, clock: Clock, writer: RankWriter, callers: bool) -> None:
        self._clock = clock
        self._writer = writer
        self._callers = callers

    def on_collective(self, call: Collective) -> None:
        """Writes an event for the collective `call`, which is about to run."""
        event = CollectiveEvent(
            op=call.op,
            ranks=call.ranks,
            site=call.site,
            step=self._clock.step,
            microbatch=self._clock.microbatch,
            backward=in_backward(),
            reduce=call.reduce,
            root=call.root,
            peer=call.peer,
            dtype=call.dtype,
            shape=call.shape,
            name=call.name,
            user=call.user,
            caller=called_at(call.site) if self._callers else "",
        )
        self._writer.add(event)
