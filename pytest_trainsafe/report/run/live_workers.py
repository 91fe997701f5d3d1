"""Live lines of a run with pytest-xdist: the current activity of the Points of all workers.

The controller shows them while its workers run tests.  pytest may write at any time then, so the
lines are removed before it writes, and come back with the next frame.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.report.rows import write_lines
from pytest_trainsafe.runs.progress.shared import forget, shared_folder

if TYPE_CHECKING:
    from pytest_trainsafe.report.run.live import Live

_PLUGIN = "trainsafe_live"

#: Whether the network's risk has been printed.
_NAMED: pytest.StashKey[bool] = pytest.StashKey()


class WorkersLive:
    """Shows the lines of `live` until the session ends.

    `writer` is pytest's terminal writer.  Its methods `write` and `write_raw` (which exists since
    pytest 9.0) are wrapped: each call first removes the live lines from the terminal.
    """

    def __init__(self, live: Live, writer: Any, config: pytest.Config) -> None:
        self._live = live
        self._writer = writer
        self._config = config
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="trainsafe-live", daemon=True)
        self._wrapped = [name for name in ("write", "write_raw") if hasattr(writer, name)]
        for name in self._wrapped:
            setattr(writer, name, self._after_clearing(getattr(writer, name)))
        self._thread.start()

    def _show(self) -> None:
        while not self._ended.wait(self._live.interval):
            with self._live.lock:
                self._writer.flush()
                self._live.draw()

    def _after_clearing(self, method: Callable[..., None]) -> Callable[..., None]:
        @wraps(method)
        def cleared(*args: Any, **words: Any) -> None:
            with self._live.lock:
                self._live.clear()
                method(*args, **words)

        return cleared

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Stops showing the Runs of a worker that has ended."""
        forget(self._config, node.gateway.id)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Removes the lines, and restores the write methods of pytest's terminal writer."""
        self._ended.set()
        self._thread.join()
        self._live.clear()
        for name in self._wrapped:
            delattr(self._writer, name)

    def pytest_unconfigure(self) -> None:
        """Closes the file to which the lines are written."""
        self._live.pytest_unconfigure()


def name_risk(config: pytest.Config) -> None:
    """Prints once, on the controller of workers with trainsafe tests, the risk of a host network.

    In a run without workers, the line that counts the Points names it.
    """
    folder, reporter = shared_folder(config), config.pluginmanager.getplugin("terminalreporter")
    quiet = reporter is None or config.get_verbosity() < 0
    if quiet or folder is None or _NAMED in config.stash or not _announced(folder):
        return
    config.stash[_NAMED] = True
    from pytest_trainsafe.config.header import PRIVATE, network

    text = network(config.stash[SETTINGS])
    if text != PRIVATE:
        reporter.ensure_newline()
        write_lines(reporter, [f"trainsafe: {text}"])


def start_for_workers(config: pytest.Config) -> None:
    """Starts to show live lines if a worker of this controller has trainsafe tests.

    Has no effect if they are shown already.
    """
    folder = shared_folder(config)
    if folder is None or config.pluginmanager.hasplugin(_PLUGIN) or not _announced(folder):
        return
    from pytest_trainsafe.report.run.live import live_of
    from pytest_trainsafe.runs.progress.shared import shared_rows

    live = live_of(config, partial(shared_rows, folder), lambda: 0.0)
    if live is not None:
        shown = WorkersLive(live, config.get_terminal_writer(), config)
        config.pluginmanager.register(shown, _PLUGIN)


def _announced(folder: Path) -> bool:
    return any(folder.glob("*.json"))
