"""Writes a page and its data into a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.printable import printable
from pytest_trainsafe.report.html.collect import document_of
from pytest_trainsafe.report.html.document import DATA, PAGE, Document, encoded
from pytest_trainsafe.report.html.fit import fitted
from pytest_trainsafe.report.html.page import page_of
from pytest_trainsafe.report.run.outcome import Outcome

if TYPE_CHECKING:
    import pytest


def write_report(
    reporter: pytest.TerminalReporter,
    reports: Sequence[pytest.TestReport],
    found: Sequence[Outcome],
) -> None:
    """Writes the page of a run, and its path to the terminal."""
    settings = reporter.config.stash[SETTINGS]
    folder = reporter.config.invocation_params.dir / settings.report
    try:
        path = write_page(document_of(reports, found, settings), folder)
    except OSError as error:
        reporter.write_line(printable(f"trainsafe: no page is written: {error}"))
        return
    here = os.path.relpath(path)
    reporter.write_line(printable(f"page: {path if here.startswith(os.pardir) else here}"))


def write_page(document: Document, folder: Path) -> Path:
    """Writes the page and its data into a folder, which is made; returns the path of the page."""
    document = fitted(document)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / DATA, encoded(document))
    path = folder / PAGE
    _write(path, page_of(document).encode())
    return path


def _write(path: Path, content: bytes) -> None:
    """Replaces a file, so that a reader never sees a part of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    os.replace(part, path)
