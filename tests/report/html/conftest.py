"""The browser, and the page of real runs, which all tests share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.report.browser import chromium
from tests.support.report.shown_runs import FAILED, PASSED, SKIPPED, run_project, write_project

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A Chromium; the test is skipped where there is none."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="package")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
            result = run_project(folder, "--trainsafe-report=out")
            counts = f"{FAILED} failed, {PASSED} passed, {SKIPPED} skipped"
            assert counts in result.stdout, result.stdout[-4000:] + result.stderr
            assert result.stdout.count("page: out") == 1
    return folder / "out"
