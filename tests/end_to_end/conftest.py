"""Ranks that run in turn in one process, for tests of what is recorded and judged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_trainsafe.fixtures.core import get_session
from pytest_trainsafe.runs.ahead import NEXT


@pytest.fixture
def in_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """The launcher `threads` runs the groups of this test, unless the command line names another.

    A group of processes takes several times the CPU of a small model's training.  What ranks record
    is the same (tests/launch/threads/test_threads_traces.py).  No program may change what threads
    share, such as a module.  Runs of the next test are not launched during this one, since that
    test may need processes.
    """
    request.config.stash[NEXT] = None
    launchers = get_session(request).groups.launchers
    before = launchers.choice
    if before == "auto":
        launchers.choice = "threads"
    yield
    launchers.choice = before
