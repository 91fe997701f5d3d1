"""Wraps hypothesis' database of failing examples, so that some fuzz tests do not use it.

A test whose search is restricted, by a sweep on the command line for example, neither tries the
stored examples again nor deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis.database import ExampleDatabase

from pytest_trainsafe.fuzz.source import PointSource


class Replay(ExampleDatabase):
    """hypothesis' database of failing examples, disabled while an option restricts the test.

    With restricted axes a saved example decodes to another Point.  It may pass there, and
    hypothesis deletes an example that passes.
    """

    def __init__(self, kept: ExampleDatabase, source: PointSource) -> None:
        super().__init__()
        self._kept = kept
        self._source = source

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The saved examples of a test; none while an option restricts it."""
        return () if self._source.narrowed else self._kept.fetch(key)

    def save(self, key: bytes, value: bytes) -> None:
        """Saves an example, unless an option restricts the test."""
        if not self._source.narrowed:
            self._kept.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Deletes an example, unless an option restricts the test."""
        if not self._source.narrowed:
            self._kept.delete(key, value)
