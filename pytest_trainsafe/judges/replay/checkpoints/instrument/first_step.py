"""Compares the first step after a restart with the first step after the checkpoint was saved.

Both steps record an RNG ledger; the draws of the original step are written beside the checkpoint.
The states of the generators after the step are compared too, which shows draws that the ledger does
not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, read_file, shown
from pytest_trainsafe.errors import ReplayError, ReplayMismatchError
from pytest_trainsafe.judges.replay.checkpoints.events.file import replace_file
from pytest_trainsafe.judges.replay.checkpoints.instrument.generators import Source
from pytest_trainsafe.judges.replay.checkpoints.instrument.run import current_run
from pytest_trainsafe.judges.replay.rng.instrument.ledger import RngLedger
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.trace.rng.difference import advances, first_difference
from pytest_trainsafe.trace.rng.events import DrawEvent, UnseenDraws

FORMAT = "pytest-trainsafe first step"

#: The most bytes of the record of a step.
_MAX_BYTES = 2**28


class FirstStep(msgspec.Struct, frozen=True, kw_only=True):
    """The draws of the first step after a checkpoint.

    `checkpoint` is the hash of the rank's file, and `after` has the states, at the end of the
    step, of the generators that the checkpoint includes, as the ledger writes them. `finished`
    is False if an exception ended the step.
    """

    format: str = FORMAT
    checkpoint: str
    draws: list[DrawEvent | UnseenDraws]
    after: dict[str, str]
    finished: bool = True


class Draws:
    """An event sink that keeps the events in memory."""

    def __init__(self) -> None:
        self.events: list[msgspec.Struct] = []

    def add(self, event: msgspec.Struct) -> None:
        """Adds one event."""
        self.events.append(event)


@contextmanager
def recorded(draws: Draws) -> Iterator[None]:
    """Records the draws in this context into `draws`, with the Run's RNG ledger or a new one."""
    run = current_run()
    if run is not None and isinstance(run.rng, RngLedger):
        with run.rng.copied(draws):
            yield
        return
    ledger = RngLedger(draws, Clock())
    with ledger.recording():
        try:
            yield
        finally:
            ledger.boundary()


def file_of(folder: Path, rank: int) -> Path:
    """The file with a rank's first step, in the folder of the checkpoint."""
    return folder / f"replay-rank{rank}.first-step.json"


def step_of(
    checkpoint: str, draws: Draws, sources: Mapping[str, Source], *, finished: bool
) -> FirstStep:
    """The record of the step that has just ended; `checkpoint` is the hash of the rank's file."""
    after = {name: source.text() for name, source in sources.items()}
    drawn = advances(draws.events)
    return FirstStep(checkpoint=checkpoint, draws=drawn, after=after, finished=finished)


def write(path: Path, step: FirstStep) -> None:
    """Writes the record of a step."""
    replace_file(path, msgspec.json.encode(step))


def read(path: Path, checkpoint: str) -> FirstStep | None:
    """The record that belongs to a checkpoint; None if there is none.

    Raises ReplayError for a damaged file.
    """
    try:
        step = msgspec.json.decode(read_file(path, max_bytes=_MAX_BYTES), type=FirstStep)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, error.strerror or "") from error
    except MALFORMED as error:
        raise _damaged(path, shown(error)) from error
    fault = next((fault for draw in step.draws if (fault := draw.fault())), "")
    if step.format != FORMAT or fault:
        raise _damaged(path, fault or "it has another format")
    return step if step.checkpoint == checkpoint else None


def require_same(original: FirstStep, replayed: FirstStep, folder: Path) -> None:
    """Raises ReplayMismatchError if the two steps draw differently.

    Names the first draw that differs or, if all draws agree, a generator that ends in another
    state.
    """
    both = original.finished and replayed.finished
    difference = first_difference(original.draws, replayed.draws, whole=both)
    if difference is not None:
        raise ReplayMismatchError(
            f"the first step after loading {folder} is not the step that followed the checkpoint: "
            f"{difference}. Either the checkpoint lacks some state that determines this draw (add "
            "this state to ReplayCheckpoint(generators=..., states=...)), or the state was "
            "restored before other code drew numbers (call ReplayCheckpoint.load after that code)"
        )
    for name, after in original.after.items() if both else ():
        if replayed.after.get(name) != after:
            raise ReplayMismatchError(
                f"the first step after loading {folder} makes the same draws as the step that "
                f"followed the checkpoint, but leaves the generator {name!r} in state "
                f"{replayed.after.get(name)} instead of {after}: some code advances this generator "
                "by draws that are not recorded in the ledger of random draws. Find the code that "
                "draws from this generator, and add the state that determines its draws to "
                "ReplayCheckpoint(generators=..., states=...)"
            )


def _damaged(path: Path, why: str) -> ReplayError:
    return ReplayError(f"{path} is damaged: {why}. Remove the file to replay without verification")
