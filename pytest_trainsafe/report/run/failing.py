"""A test that fails: one line says why, its report is stored, and ranks' exceptions are told once.

Called by the plugin around pytest's report of each test.  A run that is killed keeps the reports of
the failures before, and tests that share a Run do not repeat the tracebacks of its ranks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trainsafe.core.cut_text import cut
from pytest_trainsafe.errors import TrainsafeError, in_one_line
from pytest_trainsafe.report.run.rank_output import is_of_rank, shows_output
from pytest_trainsafe.sweep.point_summary import LONGEST, PROPERTY
from pytest_trainsafe.sweep.signature import MARKER

if TYPE_CHECKING:
    from pytest_trainsafe.launch.failure import GroupFailure

#: The folder for reports, in the folder of a run's traces.
FOLDER = "reports"

#: The first test that each failed group ended, by the group's folder.
_TOLD: pytest.StashKey[dict[Path, str]] = pytest.StashKey()

_LONGEST_NAME = 120

#: The most Findings of one test that its report carries.
MOST_FINDINGS = 200


def tell_once(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """Notes the line at which ranks raised an exception, and shortens what is told elsewhere.

    That is the whole of a failure that an earlier test reported, and what ranks printed if a
    section of this test's report has it.
    """
    failure = _failure_of_group(call)
    if failure is None or call.excinfo is None:
        return
    if call.when == "call" and shows_output(item.config, "stderr"):
        failure.leave_out_printed()
    if item.get_closest_marker(MARKER) is None:
        return
    from pytest_trainsafe.launch.failure import GroupFailure, headline, raised_at

    what = headline(failure.result).partition("\n")[0]
    for name, text in (
        ("error", what),
        ("error_at", raised_at(failure.result)),
        ("error_axis", failure.axis),
    ):
        if text:
            item.user_properties.append((f"{PROPERTY}_{name}", cut(text, LONGEST)))
    told = item.config.stash.setdefault(_TOLD, {})
    first = told.setdefault(failure.result.folder, item.nodeid)
    if first != item.nodeid:
        short = GroupFailure(failure.result, failure.what, first, failure.axis)
        short = short.with_traceback(call.excinfo.tb)
        short.__suppress_context__ = True
        call.excinfo = pytest.ExceptionInfo.from_exception(short)


def shorten_line(item: pytest.Item, error: BaseException | None, report: pytest.TestReport) -> None:
    """Puts the finding of one of our exceptions into the line that pytest prints of a failure.

    pytest shows it in its short summary and in JUnit files.  It would be the class, with its
    module, and the first line of the report, which names what the node id names already.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None or not isinstance(error, TrainsafeError):
        return
    crash.message = in_one_line(error)
    if item.get_closest_marker(MARKER) is not None:
        entry = (f"{PROPERTY}_line", crash.message)
        item.user_properties.append(entry)
        report.user_properties.append(entry)


def attach_findings(error: BaseException | None, report: pytest.TestReport) -> None:
    """Adds the Findings of an exception to its report: `report.trainsafe_findings`, plain data.

    pytest-xdist carries it to the process that reports.  Values that JSON does not have, such as
    complex numbers, are texts.
    """
    findings = getattr(error, "findings", ()) if isinstance(error, TrainsafeError) else ()
    if findings:
        import msgspec

        encoded = msgspec.json.encode(findings[:MOST_FINDINGS], enc_hook=str)
        vars(report)["trainsafe_findings"] = msgspec.json.decode(encoded)


def store(item: pytest.Item, report: pytest.TestReport, folder: Path | None) -> None:
    """Writes the text of a failed marked test into `folder`, the folder of the run's traces.

    Nothing is written if `folder` is None; a file that cannot be written is left out.
    """
    if folder is None or not report.failed or item.get_closest_marker(MARKER) is None:
        return
    name = re.sub(r"[^\w.,=-]+", "_", item.nodeid)[-_LONGEST_NAME:].strip("_")
    path = folder / FOLDER / f"{name}-{report.when}.txt"
    text = f"{item.nodeid}\n\n{report.longreprtext}\n"
    for title, content in report.sections:
        text += f"\n{title}\n{content}\n" if is_of_rank(title) else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:  # the report is on the terminal too
        return
    entry = (f"{PROPERTY}_report", str(path))
    item.user_properties.append(entry)
    report.user_properties.append(entry)


def _failure_of_group(call: pytest.CallInfo[Any]) -> GroupFailure | None:
    module = sys.modules.get("pytest_trainsafe.launch.failure")
    if module is None or call.excinfo is None:
        return None
    value = call.excinfo.value
    return value if isinstance(value, module.GroupFailure) else None
