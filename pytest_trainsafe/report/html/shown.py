"""Puts what the page of `--trainsafe-report` shows of a test on the test's reports.

Judges add Sections while the test runs; this adds one for what ended the test in another way: ranks
that did not finish, or any other exception.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_trainsafe.errors import TrainsafeError, in_one_line
from pytest_trainsafe.report.panels import LABEL, Panel, Section
from pytest_trainsafe.report.sections import add, attach, collected, label

if TYPE_CHECKING:
    import pytest


def attach_sections(error: BaseException | None, report: pytest.TestReport) -> None:
    """Adds the Sections of a test's phase to its report, as data that pytest-xdist carries."""
    if report.failed and error is not None:
        failures = sys.modules.get("pytest_trainsafe.launch.failure")
        text = str(error) if isinstance(error, TrainsafeError) else report.longreprtext
        if failures is not None and isinstance(error, failures.GroupFailure):
            from pytest_trainsafe.report.html.ranks import rank_panels

            _add("ranks", text, error, rank_panels(error.result))
        elif all(each.text != text for each in collected()):
            _add("test", text, error)
    attach(report)


def _add(judge: str, text: str, error: BaseException, panels: Sequence[Panel] = ()) -> None:
    line = in_one_line(error) if isinstance(error, TrainsafeError) else type(error).__name__
    add(
        Section(
            judge=judge,
            verdict="error",
            what=label(line, LABEL),
            text=text,
            panels=tuple(panels),
        )
    )
