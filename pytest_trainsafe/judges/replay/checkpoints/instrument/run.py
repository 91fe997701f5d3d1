"""The Run that this process records, with the data that replay checkpoints need.

A program that runs by itself is not recorded; it saves its checkpoints in the folder that it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pytest_trainsafe.core.rank.state import keep_per_rank
from pytest_trainsafe.judges.replay.checkpoints.events import ReplayCheckpointEvent, RestartEvent
from pytest_trainsafe.judges.replay.rng.instrument.ledger import RngLedger
from pytest_trainsafe.judges.replay.rng.instrument.no_ledger import NoLedger
from pytest_trainsafe.record.assignment import CHECKPOINTS, Assignment
from pytest_trainsafe.record.clock import Clock, ProgramError
from pytest_trainsafe.trace.writer import RankWriter

_current: RecordedRun | None = None
keep_per_rank(__name__, "_current")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The data of the recorded Run that a ReplayCheckpoint uses."""

    assignment: Assignment
    clock: Clock
    writer: RankWriter
    rng: RngLedger | NoLedger

    @property
    def root(self) -> Path:
        """The folder that contains the folders of this Run's checkpoints."""
        assigned = self.assignment.checkpoints
        return Path(assigned) if assigned else Path(self.assignment.trace).parent / CHECKPOINTS

    @property
    def resumed(self) -> Path | None:
        """The folder of the checkpoint that this Run continues from; None if there is none."""
        folder = self.assignment.spec.checkpoint
        return Path(folder) if folder else None

    def saved(self, event: ReplayCheckpointEvent) -> None:
        """Records that the program saved a checkpoint."""
        self.rng.boundary()
        self.writer.add(event)
        self.writer.flush()

    def restarted(self, step: int, digest: str) -> None:
        """Records that the program continues at `step`, which becomes the number of the next step.

        `digest` is the hash of the checkpoint's file.
        """
        if self.clock.step is not None:
            raise ProgramError(
                f"ReplayCheckpoint.load was called inside step {self.clock.step}; call it before "
                "the first step"
            )
        self.clock.steps_done = step
        self.writer.add(RestartEvent(step, digest))


def current_run() -> RecordedRun | None:
    """The Run that this process records; None in a program that runs by itself."""
    return _current


@contextmanager
def unrecorded_draws() -> Iterator[None]:
    """Excludes draws in this context from the Run's ledger."""
    run = current_run()
    recorded = run is not None and isinstance(run.rng, RngLedger)
    with run.rng.paused() if recorded else nullcontext():  # type: ignore[union-attr]
        yield


@contextmanager
def recorded_run(run: RecordedRun) -> Iterator[None]:
    """Makes `run` the current Run in this context."""
    global _current
    before, _current = _current, run
    try:
        yield
    finally:
        _current = before
