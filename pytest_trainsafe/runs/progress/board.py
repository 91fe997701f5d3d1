"""What the Runs of this process are doing now, for the live lines of the terminal.

The session's threads write it, and the display's thread reads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

#: The stages of a Run, in order.
QUEUED, WAITING, TRAINING = "looks for a kept reference", "waits for free ranks", "trains"
STAGES = (QUEUED, WAITING, TRAINING)


@dataclass(slots=True)
class Status:
    """One Run in progress.  `since` is when its stage began, on the board's clock."""

    point: str
    run: str
    ranks: int
    stage: str
    since: float


class Board:
    """The Runs in progress.  `clock` is in seconds.

    `changed`, if there is one, is called with all rows after each change, one call at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.changed: Callable[[list[Status]], None] | None = None
        self._rows: list[Status] = []
        self._lock = threading.Lock()

    @contextmanager
    def running(self, point: str, run: str, ranks: int) -> Iterator[Callable[[str], None]]:
        """Shows a Run until the block ends; the function that it yields sets the stage."""
        row = Status(point, run, ranks, QUEUED, self.clock())

        def enter(stage: str) -> None:
            with self._lock:
                row.stage, row.since = stage, self.clock()
                self._publish()

        with self._lock:
            self._rows.append(row)
            self._publish()
        try:
            yield enter
        finally:
            with self._lock:
                # By identity: two Runs may have the same values.
                self._rows = [each for each in self._rows if each is not row]
                self._publish()

    def rows(self) -> list[Status]:
        """Copies of the Runs in progress, in the order in which they began."""
        with self._lock:
            return [replace(row) for row in self._rows]

    def _publish(self) -> None:
        if self.changed is not None:
            self.changed(self._rows)
