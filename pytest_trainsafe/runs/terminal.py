"""Opens the console of a pytest run: for live output (`-s`).

Called by the fixtures.  `with_console` says what each Run does on the console.
"""

from __future__ import annotations

import os

import msgspec
import pytest

from pytest_trainsafe.launch.console.console import Console, current
from pytest_trainsafe.launch.task import Task
from pytest_trainsafe.trace.run_spec import RunSpec


def with_console(task: Task, spec: RunSpec | None = None) -> Task:
    """The task, with what its ranks show while they run.

    `spec` is the Run's, None for a group of a test's own.  Of a test's many Runs, those with noise,
    with rewritten tensors and the repeated ones show nothing.
    """
    if current() is None:
        return task
    plain = spec is None or not (spec.perturbation or spec.rewrite or spec.repeat)
    trusted = spec is not None and spec.trusted
    live = ("reference" if trusted else "") if plain else None
    return msgspec.structs.replace(task, live=live)


def show_live(config: pytest.Config) -> None:
    """Opens a console if pytest captures no output, and if this process has none."""
    if current() is None and config.getoption("capture") == "no" and not _is_worker(config):
        console = Console(
            os.dup(1), os.dup(2), lambda: config.get_terminal_writer().width_of_current_line
        )
        config.pluginmanager.register(_Tests(console), "trainsafe_console")
        config.add_cleanup(console.close)


class _Tests:
    """A plugin of pytest that tells the console when pytest writes to its own line."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._console.begin_line()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        self._console.begin_line()


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
