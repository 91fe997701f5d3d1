"""Lets a pytest process with marked tests end soon after Ctrl-C, or after an error of pytest."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

#: The name under which each pytest process registers its Interrupt.
NAME = "trainsafe_interrupt"


class Interrupt:
    """A plugin of pytest; once there is a Session, `stop` ends its ranks and does not wait."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.stop: Callable[[], None] = lambda: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Stops the ranks that are left.

        If another plugin raises at this hook, a worker of pytest-xdist skips the clean-up of its
        configuration, and Python waits for the threads of the Runs.  pytest-xdist itself raises
        when its controller was killed.
        """
        self.stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Stops the ranks at once, and saves pytest work of seconds whose result nobody sees.

        pytest parses the source of each of some sixty frames, but shows only the last one, and a
        worker of pytest-xdist shows none; only with --full-trace it shows all.  The objects of
        torch stay until the end, but the garbage collector searches them again and again meanwhile,
        and once more when Python exits.
        """
        self.stop()
        if "pytest_trainsafe.sweep.collect" not in sys.modules and "torch" not in sys.modules:
            return
        gc.freeze()
        frames = excinfo.traceback
        if not self._config.getoption("fulltrace", False) or hasattr(self._config, "workerinput"):
            shown = (n for n in reversed(range(len(frames))) if not frames[n].ishidden(excinfo))
            excinfo.traceback = frames[next(shown, 0) :]
