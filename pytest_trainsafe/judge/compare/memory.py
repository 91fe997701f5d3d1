"""Keeps what was found out before, up to a number of bytes: the last used stays longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Memory(Generic[T]):
    """Values by key, of at most `limit` bytes together, by what `size` says of each."""

    def __init__(self, limit: int, size: Callable[[T], int]) -> None:
        self.limit = limit
        self.used = 0
        self._size = size
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        """What is kept under a key."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def keep(self, key: Hashable, value: T) -> None:
        """Keep a value; what was used longest ago goes where there is no room."""
        self.forget(key)
        size = self._size(value)
        if size > self.limit:
            return
        self._values[key] = value, size
        self.used += size
        while self.used > self.limit:
            _, (_, gone) = self._values.popitem(last=False)
            self.used -= gone

    def forget(self, key: Hashable) -> None:
        """Drop a key."""
        found = self._values.pop(key, None)
        if found is not None:
            self.used -= found[1]
