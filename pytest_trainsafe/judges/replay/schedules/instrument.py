"""Records which buffers of asynchronous calls a rank uses before it has waited for the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from pytest_trainsafe.judges.replay.schedules.events import AsynchronousCalls, EarlyUse
from pytest_trainsafe.launch.collectives.in_flight import Accessed, Watch, watching
from pytest_trainsafe.record.instrument import Instrument, Recording

#: Maximum number of recorded uses; each pair of lines is recorded once.
MAX_USES = 64


class EarlyUses(Instrument):
    """Watches the rank if its Run has a schedule."""

    name: ClassVar = "schedule"

    def __init__(self, recorder: Recording) -> None:
        self._writer, self._clock = recorder.writer, recorder.clock
        self._wanted = recorder.spec.schedule is not None
        self._watch: Watch | None = None
        self._seen: set[Accessed] = set()

    @contextmanager
    def around(self) -> Iterator[None]:
        """Watches the buffers in flight while the program runs."""
        if not self._wanted:
            yield
            return
        with watching(self._found) as self._watch:
            yield

    def _found(self, use: Accessed) -> None:
        if use in self._seen or len(self._seen) >= MAX_USES:
            return
        self._seen.add(use)
        done = self._clock.steps_done
        self._writer.add(
            EarlyUse(use.access, use.call, use.issued, use.operator, use.at, done, use.ours)
        )

    def finish(self) -> None:
        """Records how much there was to watch."""
        if self._watch is not None:
            self._writer.add(AsynchronousCalls(self._watch.calls))
