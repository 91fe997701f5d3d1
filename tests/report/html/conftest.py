"""The browser, and the page of real runs, which all tests of a module share."""

from __future__ import annotations

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
    """The folder with the page of real runs: clean ones, and failures of every judge."""
    folder = tmp_path_factory.mktemp("shown")
    write_project(folder)
    result = run_project(folder, "--trainsafe-report=out")
    counts = f"{FAILED} failed, {PASSED} passed, {SKIPPED} skipped"
    assert counts in result.stdout, result.stdout[-4000:] + result.stderr
    assert result.stdout.count("page: out") == 1
    return folder / "out"
