"""Tells replay checkpoints of the Run in which the program saves or loads them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from pytest_trainsafe.judges.replay.checkpoints.instrument.run import RecordedRun, recorded_run
from pytest_trainsafe.judges.replay.rng.instrument.drawing import Drawing
from pytest_trainsafe.record.instrument import Instrument, Recording


class Restarting(Instrument):
    """Makes the Run the current one while its program runs."""

    name = "restart"
    after: ClassVar = {"rng": "a checkpoint has the states that the ledger knows"}

    def __init__(self, recorder: Recording) -> None:
        ledger = recorder.instrument(Drawing).ledger
        self._run = RecordedRun(recorder.assignment, recorder.clock, recorder.writer, ledger)

    def around(self) -> AbstractContextManager[object]:
        """Makes the Run known to `ReplayCheckpoint`."""
        return recorded_run(self._run)
