"""Reads `--trainsafe-replay TRACE[@STEP]`: which Run, which step, and which checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_trainsafe.core.usage import listing
from pytest_trainsafe.errors import ArgumentError, TraceError
from pytest_trainsafe.judges.replay.checkpoints.events import ReplayCheckpointEvent
from pytest_trainsafe.judges.replay.checkpoints.events.file import file_of
from pytest_trainsafe.record.assignment import CHECKPOINTS
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: The option, for messages.
OPTION = "--trainsafe-replay"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to replay: the Run of `trace`, from step `first` to `step`.

    `folder` is the folder of the checkpoint before `first`.  It is None if no checkpoint can be
    used: the Run then starts from the beginning, and `why` gives the reason.
    """

    trace: Trace
    step: int
    first: int
    folder: Path | None
    why: str

    def is_of(self, spec: RunSpec) -> bool:
        """Whether the Run of `spec`, which a test requests, is the Run that recorded the trace."""
        return spec.identity() == self.trace.manifest.spec.identity()

    @property
    def title(self) -> str:
        """A title for the Run: "program:train at tp=2 in float64"."""
        manifest = self.trace.manifest
        return f"{manifest.program} at {self.trace.point} in {manifest.dtype}"


def read_request(path: str, step: int | None) -> ReplayRequest:
    """Reads the trace at `path`, and chooses the checkpoint from which to replay it up to `step`.

    If `step` is None, the step that failed is replayed: the one in which a rank ended, else the
    first step whose loss or gradient norm is not finite, else the last step.  Raises TraceError for
    a folder that is not a trace, and ArgumentError for a step that the trace does not have.
    """
    trace = Trace.open(_folder_of(Path(path)), allow_incomplete=True)
    done = min(_steps_done(trace, rank) for rank in range(len(trace.ranks)))
    last = done if trace.problems else done - 1
    if last < 0:
        raise TraceError(
            f"{trace.path} has no step to replay: its ranks ended before the first step. Run the "
            "test again without the option"
        )
    if step is None:
        step = last if trace.problems else min(_first_not_finite(trace), last)
    elif step > last:
        raise ArgumentError(
            f"{OPTION} was given step {step}, but {trace.path} has only the steps 0 to {last}; "
            "choose one of these, or leave the step out to replay the step that failed"
        )
    saved = {event.step: event.folder for event in trace.ranks[0].events_of(ReplayCheckpointEvent)}
    fitting = [first for first in saved if first <= step]
    for first in sorted(fitting, reverse=True):
        folder = trace.path.parent / CHECKPOINTS / saved[first]
        if saved[first] and all(file_of(folder, r).exists() for r in range(len(trace.ranks))):
            return ReplayRequest(trace, step, first, folder.absolute(), "")
    if not saved:
        why = "the program saved no ReplayCheckpoint"
    elif not fitting:
        why = f"the checkpoints were saved later, before the steps {listing(map(str, saved))}"
    else:
        why = (
            f"there is no checkpoint in {trace.path.parent / CHECKPOINTS}; record the trace with "
            "--trainsafe-keep-traces and --trainsafe-no-cache"
        )
    return ReplayRequest(trace, step, 0, None, why)


def _folder_of(path: Path) -> Path:
    """The folder of the trace: `path / "trace"` if this has a manifest and `path` has none.

    In all other cases it is `path` itself.
    """
    inside = path / "trace"
    whole = (path / "manifest.json").exists() or not (inside / "manifest.json").exists()
    return path if whole else inside


def _steps_done(trace: Trace, rank: int) -> int:
    return max((event.step + 1 for event in trace.ranks[rank].steps), default=0)


def _first_not_finite(trace: Trace) -> int:
    """The first step with a loss or gradient norm that is not finite; else rank 0's step count."""
    found = [_steps_done(trace, 0)]
    for rank in trace.ranks:
        for id, event in rank.tensors.items():
            if id.kind in ("loss", "grad_norm") and id.step < found[-1] and event.key:
                value = trace.load(rank.rank, event)
                if value.is_floating_point() and not torch.isfinite(value).all():
                    found.append(id.step)
    return found[-1]


def step_is_over(trace: Trace, rank: int, step: int) -> bool:
    """Whether a rank finished a step."""
    return any(event.step == step for event in trace.ranks[rank].steps)
