"""The end of a run: the terminal summary, the reports for GitHub, and the seconds of the tests.

Called by the plugin in the process that has the reports of all tests: with pytest-xdist that is the
controller.  Imports the writers only if there are marked tests.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe import wings
from pytest_trainsafe.config.settings import SETTINGS, Settings

if TYPE_CHECKING:
    import pytest

_PREFIX = "trainsafe"


def conclude(reporter: pytest.TerminalReporter, folder: Path | None) -> None:
    """Writes all reports on the marked tests after a run; none if there are no such tests.

    Stores the tests' seconds in `folder` for later plans, unless `folder` is None.
    """
    reports = [
        report
        for group in reporter.stats.values()
        for report in group
        if _is_of_test(report)
        and any(str(name).startswith(_PREFIX) for name, _ in report.user_properties)
    ]
    settings = reporter.config.stash[SETTINGS]
    if reports:
        _conclude_tests(reporter, settings, reports, folder)
    if settings.report:
        _write_page(reporter)
    for setting, path in wings.SECTIONS.items():
        if getattr(settings, setting):
            for write in wings.objects([path]):
                write(reporter, settings, reports)


def _is_of_test(report: object) -> bool:
    """Whether this is the report of a test, and not of a module, nor a test that was deselected."""
    return getattr(report, "when", "") in ("setup", "call", "teardown")


def _write_page(reporter: pytest.TerminalReporter) -> None:
    """Writes the page of `--trainsafe-report`, if any test has run."""
    reports = [each for group in reporter.stats.values() for each in group]
    tests = [each for each in reports if _is_of_test(each)]
    if not tests:
        return
    from pytest_trainsafe.report.html.write import write_report
    from pytest_trainsafe.report.run.order import in_order
    from pytest_trainsafe.report.run.outcome import outcomes

    write_report(reporter, tests, in_order(reporter.config, outcomes(tests)))


def _conclude_tests(
    reporter: pytest.TerminalReporter,
    settings: Settings,
    reports: Sequence[pytest.TestReport],
    folder: Path | None,
) -> None:
    from pytest_trainsafe.report.run.families import families
    from pytest_trainsafe.report.run.order import in_order
    from pytest_trainsafe.report.run.outcome import outcomes, seconds_of
    from pytest_trainsafe.report.run.summary import write_summary

    found = in_order(reporter.config, outcomes(reports))
    causes = families(found)
    write_summary(reporter, reports, found, causes)
    from pytest_trainsafe.report.run.github import is_wanted, write_github

    if is_wanted(settings):
        write_github(reporter, settings, found, causes)
    judged = any(outcome.verdict not in ("skipped", "error") for outcome in found)
    if folder is not None and (judged or "msgspec" in sys.modules):
        from pytest_trainsafe.sweep.plan.seconds import update_seconds

        update_seconds(folder, seconds_of(reports))
