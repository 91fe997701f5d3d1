"""What this process's Runs are doing at the moment, for the live lines in the terminal.

The session's threads write it, and the display's thread reads it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

#: The stages of a Run, in order.
QUEUED, WAITING, TRAINING = "looks for a cached reference", "waits for free ranks", "trains"
STAGES = (QUEUED, WAITING, TRAINING)


@dataclass(slots=True)
class Status:
    """One Run in progress.  `since` is when its stage began, on the board's clock.

    `behind` names the other test runs that it waits for, if there are any.
    """

    point: str
    run: str
    ranks: int
    stage: str
    since: float
    behind: str = ""


class Enter(Protocol):
    """Sets the stage of a Run, and the other test runs that it waits for in it."""

    def __call__(self, stage: str, behind: str = "") -> None: ...


class Board:
    """The Runs in progress.  `clock` is in seconds.

    `changed`, if it is set, is called with all rows after each change, one call at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.changed: Callable[[list[Status]], None] | None = None
        self._rows: list[Status] = []
        #: The seconds in which a Run waited for another test run, and since when one waits now.
        self._held_up, self._waits_since = 0.0, math.inf
        self._lock = threading.Lock()

    @contextmanager
    def running(self, point: str, run: str, ranks: int) -> Iterator[Enter]:
        """Shows a Run until the block ends; the function that it yields sets the stage."""
        row = Status(point, run, ranks, QUEUED, self.clock())

        def enter(stage: str, behind: str = "") -> None:
            with self._lock:
                if stage != row.stage:
                    row.stage, row.since = stage, self.clock()
                row.behind = behind
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

    def held_up(self) -> float:
        """The seconds in which a Run of this process waited for ranks of another test run."""
        with self._lock:
            return self._held_up + max(0.0, self.clock() - self._waits_since)

    def _publish(self) -> None:
        waits = any(row.behind for row in self._rows)
        if waits and self._waits_since == math.inf:
            self._waits_since = self.clock()
        elif not waits and self._waits_since != math.inf:
            self._held_up += self.clock() - self._waits_since
            self._waits_since = math.inf
        if self.changed is not None:
            self.changed(self._rows)
