"""The store through which the ranks of a process exchange keys.

A Store of torch that is written in Python.  A rank that waits for a key hands over.  There are no
timeouts, because a wait that cannot end is a deadlock, which is noticed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pytest_trainsafe.core.code_files import calling_lines
from pytest_trainsafe.launch.threads.turns import Turns

#: torch declares other types of arguments than it passes to a store in Python.
_Store: Any = dist.Store  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Keys:
    """Keys that a rank waits for; an Event."""

    names: Sequence[str]
    data: dict[str, bytes]
    line: str

    @property
    def done(self) -> bool:
        return all(name in self.data for name in self.names)

    def __str__(self) -> str:
        missing = [name for name in self.names if name not in self.data]
        return f"for the keys {missing} of the store at {self.line}"


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class TurnStore(_Store):  # type: ignore[misc]
    """A store in the memory of this process; each rank of it has one with the same `data`."""

    def __init__(self, turns: Turns, data: dict[str, bytes]) -> None:
        super().__init__()
        self._turns, self._data = turns, data

    def set(self, key: str, value: Any) -> None:
        """Sets a key."""
        self._data[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        """The value of a key, once it exists."""
        self.wait([key])
        return self._data[key]

    def add(self, key: str, amount: int) -> int:
        """Adds to the number that a key has, 0 if there is none; returns the sum."""
        total = int(self._data.get(key, b"0")) + amount
        self._data[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Sets a key if it has the expected value ("" for none); returns its value."""
        now = self._data.get(key)
        if now == _bytes(expected) or (now is None and not _bytes(expected)):
            self._data[key] = _bytes(desired)
        return self._data.get(key, _bytes(expected))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Returns when the keys exist."""
        event = _Keys(list(keys), self._data, "")
        if not event.done:
            event.line = calling_lines()[0]
            self._turns.wait(event)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether the keys exist."""
        return all(key in self._data for key in keys)

    def delete_key(self, key: str) -> bool:
        """Deletes a key; returns whether it existed."""
        return self._data.pop(key, None) is not None

    def num_keys(self) -> int:
        """The number of keys."""
        return len(self._data)

    def append(self, key: str, value: Any) -> None:
        """Appends to the value of a key."""
        self._data[key] = self._data.get(key, b"") + _bytes(value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys, once all exist."""
        self.wait(keys)
        return [self._data[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Sets several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether `append`, `multi_get` and `multi_set` exist."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Does nothing: there are no timeouts."""

    def clone(self) -> TurnStore:
        """This store."""
        return self

    # The names by which torch calls these methods from C++.
    compareSet, deleteKey, getNumKeys = compare_set, delete_key, num_keys
    multiGet, multiSet, hasExtendedApi = multi_get, multi_set, has_extended_api
    setTimeout = set_timeout
