"""The browser, and the page of real runs, which all tests share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.end_to_end import inner_pytest
from tests.support.end_to_end.sharing import sharing_fork_server
from tests.support.report.browser import chromium
from tests.support.report.shown_runs import FAILED, PASSED, QUICK, SKIPPED, write_project

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from pytest_trainsafe.launch import Launcher


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A Chromium; the test is skipped where there is none."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="package")
def shown(tmp_path_factory: pytest.TempPathFactory, run_launcher: Launcher) -> Path:
    """The folder with the page of real runs: clean ones, and failures of every judge.

    The first of pytest-xdist's workers that needs it makes it for all.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shown"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "out" / "index.html").exists():
            write_project(folder)
            with sharing_fork_server(run_launcher):
                result = inner_pytest.forked(
                    [*QUICK, f"--basetemp={folder}/base", "--trainsafe-report=out"], folder
                )
            counts = f"{FAILED} failed, {PASSED} passed, {SKIPPED} skipped"
            assert counts in result.stdout, result.stdout[-4000:] + result.stderr
            assert result.stdout.count("page: out") == 1
    return folder / "out"
