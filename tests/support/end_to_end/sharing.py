"""Inner runs of pytest fork their ranks from the fork server of the outer run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_trainsafe.launch import Launcher


@contextmanager
def sharing_fork_server(launcher: Launcher) -> Iterator[None]:
    """Sets the environment of inner runs so that they use the fork server of `launcher`, if any."""
    address = getattr(launcher, "address", "")
    with pytest.MonkeyPatch.context() as patch:
        if address:
            patch.setenv("PYTEST_PLUGINS", "tests.support.launch.shared_fork_server")
            patch.setenv("TRAINSAFE_TESTS_FORK_SERVER", address)
        yield
