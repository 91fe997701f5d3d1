"""Records the random draws of a Run in its RNG ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from pytest_trainsafe.judges.replay.rng.instrument.ledger import RngLedger
from pytest_trainsafe.judges.replay.rng.instrument.no_ledger import NoLedger
from pytest_trainsafe.record.instrument import Instrument, Recording, WatchedModel


class Drawing(Instrument):
    """Keeps the ledger, unless the Run's `rng` switches it off."""

    name = "rng"

    def __init__(self, recorder: Recording) -> None:
        writer = recorder.writer
        self.ledger: RngLedger | NoLedger = (
            RngLedger(writer, recorder.clock) if recorder.spec.rng else NoLedger(writer)
        )
        self._through = recorder.draws.through

    def around(self) -> AbstractContextManager[object]:
        """Records the draws of the program."""
        return self.ledger.recording(self._through)

    def watch(self, watched: WatchedModel) -> None:
        """Attributes draws to the model's modules from now on."""
        self.ledger.watch(watched.called, [part for _, part in watched.parts])

    def before_step(self) -> None:
        """Finds draws between steps that were not intercepted."""
        self.ledger.boundary()

    @contextmanager
    def in_step(self, number: int) -> Iterator[None]:
        """Finds draws in a step that were not intercepted."""
        yield
        self.ledger.boundary()

    @contextmanager
    def in_microbatch(self, index: int) -> Iterator[None]:
        """Finds draws in a micro-batch that were not intercepted."""
        yield
        self.ledger.look()
