"""The replays of a Session: which Runs continue from a checkpoint, and notes for the summary."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec import structs

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.replay.checkpoints.runs.replayed import did_restart, verify
from pytest_trainsafe.judges.replay.checkpoints.runs.request import ReplayRequest, read_request
from pytest_trainsafe.judges.replay.checkpoints.runs.spliced import spliced
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.resources.locks import Stopped
from pytest_trainsafe.printable import printable
from pytest_trainsafe.runs.substitute import Making
from pytest_trainsafe.runs.unused_traces import given_traces
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: The key of the property that has a note on a replay, in a test's report.
PROPERTY = "trainsafe_replay"


class Replays:
    """The Run that `--trainsafe-replay` selects; none without the option.

    `notes` says what was replayed, and how far the replay equals the original.
    """

    def __init__(self, settings: Settings) -> None:
        self._requested = settings.replay
        self._request: ReplayRequest | None = None
        self._lock = threading.Lock()
        self.notes: list[str] = []

    def instead(self, spec: RunSpec) -> Making | None:
        """Makes the replay instead of the Run of `spec`; None if it runs from the start.

        Raises the errors of `read_request`: TraceError and ArgumentError.
        """
        if self._requested is None:
            return None
        with self._lock:
            if self._request is None:
                try:
                    self._request = read_request(*self._requested)
                except Exception as error:
                    self.notes.append(f"nothing was replayed: {error}")
                    raise
        request = self._request
        if not request.is_of(spec):
            return None
        if request.folder is None:
            self.notes.append(f"{request.title} runs from the start: {request.why}")
            return None
        return functools.partial(self._make, request, spec)

    def _make(
        self, request: ReplayRequest, spec: RunSpec, trace: Path, record: Callable[[RunSpec], None]
    ) -> Trace:
        """The Trace of a Run whose steps after the checkpoint are recorded in `trace` by `record`.

        Raises GroupFailure if its ranks did not finish, and ReplayMismatchError if its
        first step draws other numbers than the original.
        """
        assert request.folder is not None
        with self._noting_errors(request):
            try:
                record(structs.replace(spec, checkpoint=str(request.folder)))
            except GroupFailure:
                self._note(request, _how_far(request, trace))
                raise
            later = Trace.open(trace)
            if not did_restart(later):
                self._note(
                    request,
                    "runs from the start, because the program did not load the checkpoint. Load it "
                    "from the folder that ReplayCheckpoint.resume_folder() returns",
                )
                return later
            self._note(request, verify(request, later))
            return spliced(request.trace, later, request.first)

    @contextmanager
    def _noting_errors(self, request: ReplayRequest) -> Iterator[None]:
        """Adds a note on an error in this context; a failed or stopped Run needs none."""
        try:
            yield
        except (GroupFailure, Stopped):
            raise
        except Exception as error:
            self._note(request, f"failed to replay: {error}")
            raise

    def _note(self, request: ReplayRequest, text: str) -> None:
        self.notes.append(f"{request.title} {text}")


def _how_far(request: ReplayRequest, trace: Path) -> str:
    """A note on a replay whose ranks failed. Raises ReplayMismatchError like `verify`."""
    later = None
    with suppress(TraceError):  # the ranks may have recorded nothing
        later = Trace.open(trace, allow_incomplete=True)
    if later is None or not did_restart(later):
        return (
            f"was to be replayed from the checkpoint before step {request.first}, but it failed, "
            "as shown, and not every rank had loaded the checkpoint"
        )
    return f"{verify(request, later)}; the Run then failed, as shown"


def attach_notes(item: pytest.Item) -> None:
    """Adds a test's notes on replays to its report."""
    for traces in given_traces(item):
        replays = traces.runs.scheduler.executor.substitute
        while isinstance(replays, Replays) and replays.notes:
            item.user_properties.append((PROPERTY, printable(replays.notes.pop(0))))
