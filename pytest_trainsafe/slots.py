"""Room for ranks: how many may run at once in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Slots:
    """A budget of ranks, taken all or nothing, in order of arrival.

    A group larger than the whole budget runs alone.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._queue: list[object] = []
        self._changed = threading.Condition()

    @contextmanager
    def take(self, ranks: int) -> Iterator[None]:
        """Hold room for `ranks` ranks; waits for it."""
        needed = min(ranks, self.total)
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            self._changed.wait_for(lambda: self._queue[0] is ticket and self._free >= needed)
            self._queue.pop(0)
            self._free -= needed
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += needed
                self._changed.notify_all()
