"""A bench of recorded traces for the tests of the judges."""

from __future__ import annotations

import pytest

from tests.support.compare.traces import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Pairs of synthetic traces; references are shared by all tests."""
    return Bench(tmp_path_factory.mktemp("compare"))
