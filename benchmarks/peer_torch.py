"""An empty test with torch's `MultiProcessTestCase`, which spawns the ranks of each test."""

from __future__ import annotations

import io
import sys
import unittest

from torch.testing._internal.common_distributed import MultiProcessTestCase


class Empty(MultiProcessTestCase):
    """A test whose ranks do nothing; `ranks` is their number."""

    ranks = 2

    @property
    def world_size(self) -> int:
        return self.ranks

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def test_empty(self) -> None:
        assert "torch" in sys.modules


def run(ranks: int) -> None:
    """Run the test once; SystemExit if it fails."""
    Empty.ranks = ranks
    said = io.StringIO()
    result = unittest.TextTestRunner(stream=said).run(Empty("test_empty"))
    if not result.wasSuccessful() or result.skipped or result.testsRun != 1:
        raise SystemExit(f"an empty MultiProcessTestCase failed:\n{said.getvalue()}")
