"""Observes one rank of a Run, and writes what it observed to a file of the rank's trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.core.cut_text import encodable
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.learn.events.check import MAX_NAME
from pytest_trainsafe.judges.learn.events.events import Plain
from pytest_trainsafe.judges.learn.events.file import FILE, SlipPlace, TableWriter, UnseenCalls
from pytest_trainsafe.judges.learn.instrument.observation import Observation
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.trace.writer import RankWriter


class RankObservation(Observation):
    """Observes what the Run's `observe` asks for.  The recorder marks the steps."""

    def __init__(self, assignment: Assignment, writer: RankWriter) -> None:
        spec = assignment.spec
        assert spec.observe is not None
        self._spec = spec.observe
        self._writer = writer
        self._table = TableWriter(writer.directory / FILE, writer.rank)
        coordinates = spec.point.coordinates(writer.rank)
        fixed: dict[str, Plain] = {"rank": writer.rank, "world_size": spec.point.world_size}
        for axis, size in spec.point.sizes.items():
            if size > 1:
                fixed[f"{axis}_rank"] = coordinates[axis]
        super().__init__(
            self._spec.apis,
            self._spec.variables,
            (self._table,),
            Steps(Sample(self._spec.every, self._spec.warm_up), automatic=False),
            fixed,
            self._spec.contents,
        )

    def watch(self, parts: Sequence[tuple[str, nn.Module]], optimizer: Any) -> None:
        """Record the state of the watched model and optimizer, also before their first use.

        `parts` has the modules of the model that this rank holds, each with its name in the model.
        """
        for prefix, part in parts:
            self.model(part, prefix)
        if isinstance(optimizer, Optimizer):
            self.observer.variables.add(optimizer)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Observe in a `with` block, and write what was observed.

        If no exception ends the block, the trace gets an event with the hash of the file, and an
        event for each place of a slip and each thing that could not be observed.
        """
        try:
            with self.active(self._spec.operators):
                yield
        except BaseException:
            with contextlib.suppress(TraceError):
                self._table.flush()
            raise
        sealed = self._table.close()
        if sealed is not None:
            self._writer.add(sealed)
        for text, place in self.observer.places.items():
            if 0 < len(place) <= MAX_NAME:
                self._writer.add(SlipPlace(text, encodable(place)))
        for what in self.unseen:
            self._writer.add(UnseenCalls(what[:MAX_NAME]))
