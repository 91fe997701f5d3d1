"""Opens the console of a pytest run: for live output (`-s`), and for `--trainsafe-debug`.

Called by the plugin and the fixtures.  `with_console` says what each Run does on the console.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

import msgspec
import pytest

from pytest_trainsafe.config.settings import SETTINGS, Settings
from pytest_trainsafe.launch.console.console import Console, current
from pytest_trainsafe.launch.task import Task
from pytest_trainsafe.trace.run_spec import RunSpec

#: Two interrupts within so many seconds end pytest, even while a rank is in its debugger.
TWICE = 2.0


def with_console(task: Task, settings: Settings, spec: RunSpec | None = None) -> Task:
    """The task, with what its ranks show and whether one of them may debug.

    `spec` is the Run's, None for a group of a test's own.  Of a test's many Runs, those with noise,
    with rewritten tensors and the repeated ones show nothing, and only the candidate's may debug.
    """
    if current() is None:
        return task
    plain = spec is None or not (spec.perturbation or spec.rewrite or spec.repeat)
    trusted = spec is not None and spec.trusted
    live = None
    if plain:
        live = "" if spec is None else f"{'reference, ' * spec.trusted}{spec.dtype}"
    debug = settings.debug
    if debug is not None and (trusted or not plain):
        debug = -1
    return msgspec.structs.replace(task, live=live, debug=debug)


def show_live(config: pytest.Config) -> None:
    """Opens a console if pytest captures no output, and if this process has none."""
    if current() is None and config.getoption("capture") == "no" and not _is_worker(config):
        _open(config, os.dup(1), os.dup(2), None)


def _open(config: pytest.Config, stdout: int, stderr: int, terminal: int | None) -> Console:
    def column() -> int:
        return config.get_terminal_writer().width_of_current_line

    console = Console(stdout, stderr, terminal, column)
    config.pluginmanager.register(_Tests(console), "trainsafe_console")
    config.add_cleanup(console.close)
    return console


class _Tests:
    """A plugin of pytest that tells the console when pytest writes to its own line.

    It also says so if no rank has asked for the terminal that the console lends.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._console.begin_line()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        self._console.begin_line()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rank = terminalreporter.config.stash[SETTINGS].debug
        if self._console.terminal is not None and not self._console.lent:
            terminalreporter.write_line(
                f"trainsafe: --trainsafe-debug {rank} had no effect: rank {rank} of a candidate "
                "reached no breakpoint()"
            )


def lend_terminal(config: pytest.Config) -> None:
    """Opens the console of a run with `--trainsafe-debug`, whose ranks may borrow the terminal.

    Raises UsageError if there is no terminal.  While a rank is in its debugger, Ctrl-C interrupts
    the debugger, and twice within two seconds ends pytest as usual.
    """
    rank = config.stash[SETTINGS].debug
    if config.getoption("dist", "no") != "no" or _is_worker(config):
        raise pytest.UsageError(
            f"--trainsafe-debug {rank} needs the terminal, which workers of pytest-xdist do not "
            "have; run pytest without -n, or with -n 0"
        )
    terminal, stdout, stderr = _uncaptured(config)
    if not os.isatty(terminal):
        for each in (terminal, stdout, stderr):
            os.close(each)
        raise pytest.UsageError(
            f"--trainsafe-debug {rank} needs a terminal, but standard input is none; run pytest "
            "in a terminal, and do not redirect its input"
        )
    _forward_interrupts(config, _open(config, stdout, stderr, terminal))


def _uncaptured(config: pytest.Config) -> list[int]:
    """Copies of the descriptors that pytest has replaced if it captures output."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)
    try:
        return [os.dup(number) for number in range(3)]
    finally:
        if capture is not None:  # as pytest leaves it between its hooks
            capture.resume_global_capture()
            capture.suspend_global_capture()


def _forward_interrupts(config: pytest.Config, console: Console) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTSTP)}
    last = -TWICE

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        twice, last = time.monotonic() - last < TWICE, time.monotonic()
        if console.borrower and not twice:
            os.kill(console.borrower, signal.SIGINT)
        elif callable(handler := before[signal.SIGINT]):
            handler(number, frame)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    signal.signal(signal.SIGINT, interrupt)
    # The shell would read what the user types, and so would the rank, which is not suspended.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    config.add_cleanup(restore)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
