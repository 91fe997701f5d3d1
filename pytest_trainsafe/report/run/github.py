"""Reports for GitHub Actions: annotations of a pull request, and the summary of a job.

Annotations are workflow commands on standard output, and the summary is Markdown appended to the
file that the runner names in GITHUB_STEP_SUMMARY.  GitHub shows at most ten annotations of a kind
for each step, and refuses a summary of more than 1 MiB.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.cut_text import cut
from pytest_trainsafe.report.rerun import NO_RUN, Rerun, rerun_with
from pytest_trainsafe.report.run.escape import code, command_data, command_property, markdown
from pytest_trainsafe.report.run.families import Family, counts
from pytest_trainsafe.report.run.outcome import FirstDifference, Outcome
from pytest_trainsafe.report.run.summary import size, what, where
from pytest_trainsafe.report.run.table import Table, tables
from pytest_trainsafe.sweep.point_summary import plural

if TYPE_CHECKING:
    import pytest

#: The most annotations of a step, and the most bytes of its summary.
MAX_ANNOTATIONS, MAX_SUMMARY = 10, 900_000

#: The most characters of a message, of a cell, and of a list of Points.
_MESSAGE, _CELL, _LIST = 4_000, 200, 2_000

#: A pytest plugin that writes an annotation for every failing test, and so uses up GitHub's ten.
_OTHER = "pytest_github_actions_annotate_failures"


def is_wanted(settings: Settings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to write these reports; with the setting "auto", only in jobs of GitHub Actions."""
    if settings.github == "auto":
        return environ.get("GITHUB_ACTIONS") == "true"
    return settings.github == "on"


def write_github(
    reporter: pytest.TerminalReporter,
    settings: Settings,
    found: Sequence[Outcome],
    causes: Sequence[Family],
) -> None:
    """Writes annotations of failures to the terminal, and the summary of the job to its file.

    `found` has the Outcome of each test at each Point, and `causes` has the failures, grouped by
    their cause.  The environment variable GITHUB_STEP_SUMMARY names the file; no summary is written
    if the variable is not set, or if all tests were skipped.  No annotations are written if
    the plugin pytest-github-actions-annotate-failures is installed, unless the setting `github` is
    "on".
    """
    config = reporter.config
    rerun = rerun_with(settings)
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or config.rootpath)
    if settings.github == "on" or not config.pluginmanager.hasplugin(_OTHER):
        for line in error_commands(causes, config.rootpath, workspace, rerun):
            reporter.ensure_newline()
            reporter.write_line(line)
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and any(outcome.verdict != "skipped" for outcome in found):
        try:
            append_summary(Path(path), found, causes, workspace, rerun)
        except OSError as error:
            reporter.write_line(f"trainsafe: no job summary is written: {error.strerror}")


def error_commands(
    causes: Sequence[Family], root: Path, workspace: Path, rerun: Rerun = NO_RUN
) -> list[str]:
    """The workflow commands that annotate the first failures, one for each cause (family).

    If there are more causes than MAX_ANNOTATIONS, the last command is a notice that counts those
    without an annotation of their own.
    """
    most = MAX_ANNOTATIONS if len(causes) <= MAX_ANNOTATIONS else MAX_ANNOTATIONS - 1
    lines = [_annotation(family, root, workspace, rerun) for family in causes[:most]]
    left = len(causes) - most
    if left > 0:
        text = f"{plural(left, 'more cause')} of failures: see the summary of the job"
        lines.append(f"::notice title=trainsafe::{command_data(text)}")
    return lines


def _annotation(family: Family, root: Path, workspace: Path, rerun: Rerun) -> str:
    lead = family.lead
    first = lead.first
    title = cut(f"trainsafe: {lead.program or lead.test}: {lead.line or what(lead)}", 250)
    message = [
        (_label(first), first.where or first.message),
        ("error", size(lead)),
        ("pattern", first.pattern),
        ("so", first.cause),
        ("axes", where(family)),
        (plural(len(family.members), "point"), cut(family.points, _LIST)),
        ("rerun", rerun.command(lead.nodeid, reader=str(workspace))),
    ]
    text = "\n".join(f"{label}: {value}" for label, value in message if value)
    place = place_of(first.source, workspace) or place_of(str(root / lead.location), workspace)
    properties = [("title", title)]
    if place is not None:
        properties = [("file", place[0]), ("line", place[1]), *properties]
    listed = ",".join(f"{name}={command_property(value)}" for name, value in properties)
    return f"::error {listed}::{command_data(cut(text, _MESSAGE))}"


def _label(first: FirstDifference) -> str:
    """What a failure's first row tells: a tensor, an exception of a rank, or something else."""
    if first.where:
        return "first wrong"
    return "exception" if first.check == "exception" else "what"


def place_of(source: str, workspace: Path) -> tuple[str, str] | None:
    """The file and the line of a "file:line", with the file relative to the workspace.

    None if `source` has another form or the file is outside of the workspace.
    """
    path, colon, line = source.rpartition(":")
    if not (colon and path and line.isdecimal() and len(line) < 10) or "\0" in path:
        return None
    relative = os.path.relpath(path, workspace)
    if os.path.isabs(relative) or relative.split(os.sep)[0] == os.pardir:
        return None
    return relative, str(max(1, int(line)))


def append_summary(
    path: Path,
    found: Sequence[Outcome],
    causes: Sequence[Family],
    workspace: Path,
    rerun: Rerun = NO_RUN,
) -> None:
    """Appends the summary to a file, whose size stays within GitHub's limit.

    Raises OSError if the path is not that of a regular file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
    with os.fdopen(descriptor, "ab") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "GITHUB_STEP_SUMMARY is not a file")
        most = MAX_SUMMARY - status.st_size
        text = job_summary(found, causes, workspace, rerun, most)
        file.write(text.encode("utf-8", "backslashreplace"))


def job_summary(
    found: Sequence[Outcome],
    causes: Sequence[Family],
    workspace: Path,
    rerun: Rerun = NO_RUN,
    most: int = MAX_SUMMARY,
) -> str:
    """The summary in Markdown, of at most `most` bytes: the causes, then a table for each test."""
    judged = [outcome for outcome in found if outcome.verdict != "skipped"]
    skipped = len(found) - len(judged)
    every, failed = plural(len(judged), "point"), counts(judged)
    title = f"{failed} of {every}" if failed else f"{every} passed"
    head = f"## trainsafe: {title}{f', {skipped} skipped' if skipped else ''}\n\n"
    blocks = [_family(number, family, workspace, rerun) for number, family in enumerate(causes, 1)]
    for table in tables(judged):
        blocks += _table(table)
    return _fitted(head, blocks, most)


def _fitted(head: str, blocks: Sequence[str], most: int) -> str:
    """The head and as many blocks as fit in `most` bytes, with a note if some do not fit.

    "" if there is no room for the head and the note.
    """
    note = "\n\nThe summary is cut here: it would be too long for GitHub. See the job's log.\n"
    left = most - _bytes(head) - _bytes(note)
    if left < 0:
        return ""
    text = [head]
    for block in blocks:
        left -= _bytes(block)
        if left < 0:
            return "".join([*text, note])
        text.append(block)
    return "".join(text)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def _family(number: int, family: Family, workspace: Path, rerun: Rerun) -> str:
    lead = family.lead
    first = lead.first
    inside = place_of(first.source, workspace)
    source = ":".join(inside) if inside is not None else first.source
    # The text may name a second place, in the form in which the ranks reported it.
    said = first.what.replace(f"{workspace}{os.sep}", "")
    place = f"{source} ({said})" if said else source
    rows = [
        (
            _label(first),
            code(_cell(first.where or first.message)),
        ),
        ("error", markdown(size(lead))),
        ("pattern", markdown(first.pattern)),
        ("so", markdown(first.cause)),
        ("axes", markdown(where(family))),
        (plural(len(family.members), "point"), markdown(cut(family.points, _LIST))),
        ("look at", code(place) if place else ""),
        ("rerun", code(rerun.command(lead.nodeid, reader=str(workspace)))),
    ]
    lines = [f"### {number}. {code(_cell(f'{lead.program or lead.test}: {what(lead)}'))}", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {label} | {text} |" for label, text in rows if text]
    return "\n".join([*lines, "", ""])


def _table(table: Table) -> list[str]:
    """One table in blocks, so that rows can be omitted: its head, each row, and its end."""
    constant = f" {markdown(table.constant)}" if table.constant else ""
    names = [*(markdown(_cell(column)) for column in table.columns), "worst tensor"]
    head = [
        f"### {code(_cell(table.test))}{constant}",
        "",
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
    ]
    rows = []
    for row, outcome in zip(table.rows, table.outcomes, strict=True):
        cells = [markdown(_cell(cell)) for cell in row]
        worst = code(_cell(outcome.worst_name)) if outcome.worst_name else ""
        rows.append(f"| {' | '.join([*cells, worst])} |\n")
    return ["\n".join([*head, ""]), *rows, "\n"]


def _cell(text: str) -> str:
    return cut(text, _CELL)
