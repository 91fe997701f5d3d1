"""A plugin for inner pytest runs: their ranks are forked from the fork server of the outer run.

Starting a fork server takes seconds of CPU, most of an inner run's time.  The fixture
`shared_fork_server` loads this module.
"""

from __future__ import annotations

import os

import pytest

from pytest_trainsafe.launch.forkserver import early, launcher

#: The variable with the address of the outer run's fork server.
ADDRESS = "TRAINSAFE_TESTS_FORK_SERVER"


def pytest_configure(config: pytest.Config) -> None:
    """Replaces the function that starts the run's fork server, until the run ends."""
    address = os.environ[ADDRESS]
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setattr(early, "start", lambda: False)
    patch.setattr(launcher, "fork_server", lambda setup, stop: (address, None))
