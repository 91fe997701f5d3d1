"""A time limit that does not count time in which other test runs hold the ranks of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

#: Seconds between two looks at how long other test runs have held this one up.
_LOOK = 1.0


class Deadline:
    """A limit of `seconds` from now; `held_up` returns the seconds that do not count."""

    def __init__(self, seconds: float, held_up: Callable[[], float]) -> None:
        self._seconds, self._held_up = seconds, held_up
        self._began = time.monotonic() - held_up()

    @property
    def spent(self) -> float:
        """The seconds that have passed, without those that do not count."""
        return time.monotonic() - self._held_up() - self._began

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.spent >= self._seconds

    def wait(self, future: Future[T]) -> T:
        """The future's result; raises TimeoutError if it has none when no time is left."""
        while True:
            left = max(0.0, self._seconds - self.spent)
            try:
                return future.result(min(left, _LOOK))
            except TimeoutError:
                if future.done() or self.passed:
                    raise
