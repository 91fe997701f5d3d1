"""Ctrl-C stops the ranks first, and does not make pytest parse sources that it does not show."""

from __future__ import annotations

import gc
import sys

import pytest

from pytest_trainsafe.runs import interrupt

TEST = """
import sys
import pytest
{use}

def inner():
    __tracebackhide__ = True
    raise KeyboardInterrupt


def test_interrupted():
    inner()
"""

NOTE = """
import gc
import pytest

@pytest.hookimpl(trylast=True)
def pytest_keyboard_interrupt(excinfo):
    print("frames", len(excinfo.traceback), "frozen", gc.get_freeze_count() > 0)
"""

IN_USE = "import pytest_trainsafe.sweep.collect"


@pytest.mark.parametrize("use", [IN_USE, ""], ids=["in use", "not in use"])
def test_the_traceback_has_only_what_pytest_shows(
    pytester: pytest.Pytester, without_hypothesis: None, use: str
) -> None:
    pytester.makepyfile(TEST.format(use=use))
    pytester.makeconftest(NOTE)

    result = pytester.runpytest_subprocess("-s")
    full = pytester.runpytest_subprocess("-s", "--full-trace")

    assert result.ret == full.ret == pytest.ExitCode.INTERRUPTED
    # pytest shows the last frame that is not hidden: the call of `inner`.
    result.stdout.fnmatch_lines(["*.py:11: KeyboardInterrupt", "(to show a full traceback*"])
    count = int(str(result.stdout).partition("frames ")[2].split()[0])
    whole = int(str(full.stdout).partition("frames ")[2].split()[0])
    assert whole > 20
    assert (count <= 2) if use else (count == whole)
    result.stdout.fnmatch_lines([f"*frozen {bool(use)}"])


def test_ranks_are_stopped_before_anything_else(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, order = interrupt.Interrupt(pytestconfig), list[str]()
    plugin.stop = lambda: order.append("stop")
    monkeypatch.setattr(gc, "freeze", lambda: order.append("freeze"))
    monkeypatch.setitem(sys.modules, "pytest_trainsafe.sweep.collect", interrupt)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        excinfo = pytest.ExceptionInfo[KeyboardInterrupt].from_current()

    plugin.pytest_keyboard_interrupt(excinfo)

    assert order == ["stop", "freeze"]
