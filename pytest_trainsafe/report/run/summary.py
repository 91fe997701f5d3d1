"""The terminal summary: a table of Points for each test, and the failures by cause.

Made from plain data on the tests' reports, which pytest-xdist sends to the controller.  Lines have
at most 80 columns, except for node ids, paths and the rerun command, which are not cut.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.usage import excerpt
from pytest_trainsafe.report.rerun import Rerun, rerun_with
from pytest_trainsafe.report.rows import wrap, write_lines
from pytest_trainsafe.report.run.families import Family, counts
from pytest_trainsafe.report.run.outcome import Outcome, summaries
from pytest_trainsafe.report.run.table import RESULTS, Table, tables
from pytest_trainsafe.sweep.point_summary import PROPERTY, PointSummary, plural, reason_counts

if TYPE_CHECKING:
    import pytest

#: The most rows and families shown without `-v`, and the most columns of a line.
MAX_ROWS, MAX_FAMILIES, WIDTH = 20, 10, 80

#: The most characters of a text from a report, and of the list of a family's Points.
_LONGEST, _LONGEST_LIST = 400, 300

_LABEL = 10


def write_summary(
    reporter: pytest.TerminalReporter,
    reports: Iterable[pytest.TestReport],
    found: Sequence[Outcome],
    causes: Sequence[Family],
) -> None:
    """Writes the summary section; nothing if no test has a verdict, or with `-qq`."""
    judged = [outcome for outcome in found if outcome.verdict != "skipped"]
    # With pytest-xdist the workers' collection output is not shown, so skips are reported here.
    counted_before = not reporter.config.pluginmanager.hasplugin("dsession")
    verbosity = reporter.config.get_verbosity()
    if verbosity < -1 or not (judged or (found and not counted_before)):
        return
    reporter.write_sep("=", "trainsafe")
    shown = tables(judged, len(judged) if verbosity > 0 else MAX_ROWS)
    write_lines(reporter, table_lines(shown, detailed=verbosity > 0))
    rerun = rerun_with(reporter.config.stash[SETTINGS])
    write_lines(reporter, family_lines(causes, rerun, detailed=verbosity > 0))
    write_lines(reporter, _stored(reports))
    write_lines(reporter, totals([summary for _, summary in summaries(reports)], judged))


def _stored(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The lines that name the folders with the reports of failed tests; none if there are none."""
    names = {
        str(Path(str(value)).parent)
        for report in reports
        for name, value in report.user_properties
        if name == f"{PROPERTY}_report"
    }
    if not names:
        return []
    # Each worker of pytest-xdist has a folder of its own.
    here = [os.path.relpath(each) for each in sorted(names)]
    shown = sorted(names) if any(each.startswith(os.pardir) for each in here) else here
    return [f"reports: {shown[0]}", *(f"         {each}" for each in shown[1:])]


def table_lines(each: Sequence[Table], *, detailed: bool) -> list[str]:
    """The lines of the tables; `detailed` shows all rows, and the tensor of each largest error."""
    lines: list[str] = []
    left = sum(len(table.rows) for table in each) if detailed else MAX_ROWS
    hidden = 0
    for table in each:
        shown = table.rows[:left]
        left -= len(shown)
        hidden += len(table.rows) - len(shown)
        if shown:
            constant = f" ({table.constant})" if table.constant else ""
            lines.append(f"{excerpt(table.test, _LONGEST)}{excerpt(constant, _LONGEST)}")
            lines += _rows(table, shown, detailed)
    if hidden:
        lines.append(f"... and {hidden} more (-v shows all)")
    return lines


def _rows(table: Table, shown: Sequence[tuple[str, ...]], detailed: bool) -> list[str]:
    """The header and the rows of one table.

    Axes that do not fit in the width are written as one column of `axis=value` words, which is
    shortened.
    """
    cells = [tuple(excerpt(cell, 40) for cell in row) for row in (table.columns, *shown)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    if 2 + sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        results = len(RESULTS)
        room = WIDTH - 2 - sum(widths[-results:]) - 2 * results
        points = ["point", *(_named(table.columns[:-results], row) for row in cells[1:])]
        cells = [
            (_shortened(point, room), *row[-results:])
            for point, row in zip(points, cells, strict=True)
        ]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for number, row in enumerate(cells):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"  {'  '.join(padded)}".rstrip())
        worst = table.outcomes[number - 1].worst_name if detailed and number else ""
        if worst:
            lines.append(f"    worst: {excerpt(worst, _LONGEST)}")
    return lines


def _named(axes: Sequence[str], row: Sequence[str]) -> str:
    return " ".join(f"{axis}={value}" for axis, value in zip(axes, row, strict=False))


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."


def family_lines(causes: Sequence[Family], rerun: Rerun, *, detailed: bool) -> list[str]:
    """A line with the numbers of failures and causes, then a block of lines for each family.

    A family is the failing Points with one cause.  Its block says what is wrong, at which Points,
    and how to run one of them again, as `rerun` says.  `detailed` shows all families,
    also if there are more than MAX_FAMILIES.
    """
    if not causes:
        return []
    ended = counts([member for family in causes for member in family.members])
    lines = ["", f"{ended}; {plural(len(causes), 'cause')}"]
    most = len(causes) if detailed else MAX_FAMILIES
    for number, family in enumerate(causes[:most], 1):
        lines += _family(number, family, rerun)
    if len(causes) > most:
        lines.append(f"... and {plural(len(causes) - most, 'more cause')} (-v shows all)")
    return [*lines, ""]


def _family(number: int, family: Family, rerun: Rerun) -> list[str]:
    lead = family.lead
    first = lead.first
    head = f"{number}. {lead.program or lead.test}: {what(lead)}"
    lines = wrap(excerpt(head, _LONGEST), WIDTH, indent="   ")
    lines += _row("points", f"{len(family.members)}: {excerpt(family.points, _LONGEST_LIST)}")
    lines += _row("where", where(family))
    lines += _row("error", size(lead))
    lines += _row("pattern", first.pattern)
    lines += _row("so", first.cause)
    place = f" ({first.what})" if first.what else ""
    lines += _row("look at", f"{relative(first.source)}{place}" if first.source else "")
    return lines + _row("rerun", rerun.command(lead.nodeid), wrapped=False)


def _row(label: str, text: str, *, wrapped: bool = True) -> list[str]:
    if not text:
        return []
    shown = excerpt(text, _LONGEST if wrapped else 10 * _LONGEST)
    pieces = wrap(shown, WIDTH - _LABEL - 3) if wrapped else [shown]
    pad = " " * (3 + _LABEL)
    return [f"   {label:<{_LABEL}}{pieces[0]}", *(pad + piece for piece in pieces[1:])]


def what(outcome: Outcome) -> str:
    """A short name of the first wrong tensor: `decoder.final_layernorm.weight · param_grad`.

    If the failure is about no tensor, what it is about and what is wrong: `step 3: ...`.
    """
    first = outcome.first
    said = ": ".join(each for each in (first.where, first.message.partition("\n")[0]) if each)
    return first.tensor or said or outcome.reason or outcome.verdict


def where(family: Family) -> str:
    """The axis values at which a family (failing Points with one cause) fails.

    For example `fails where tp >= 2; 3 other points pass`.  If several conditions fit the Points,
    what the failing ones have in common; "" if nothing is known.
    """
    if not family.condition:
        return family.common
    others = plural(family.passing, "other point")
    verb = "pass" if family.passing != 1 else "passes"
    return f"fails where {family.condition}; {others} {verb}"


def size(outcome: Outcome) -> str:
    """The error: `5.6e-01 in float64, rounding allows 2.9e-14`; "" if none was measured.

    A tensor in which rounding changes nothing, such as one of integers, must be equal.
    """
    first = outcome.first
    if first.error is None:
        return ""
    dtype = f" in {first.dtype}" if first.dtype else ""
    allowed = f", rounding allows {first.allowed:.1e}" if first.allowed is not None else ""
    if first.allowed == 0:
        allowed = "; the values must be equal"
    return f"{first.error:.1e}{dtype}{allowed}"


def totals(found: Sequence[PointSummary], judged: Sequence[Outcome] = ()) -> list[str]:
    """The closing lines of the summary: numbers of Points, seconds, notes and skipped Points.

    `3 points judged: 3 pass; launch 9.1 s, train 0.4 s` and `2 points skipped: <reason> (2)`.
    """
    verdicts = Counter(summary["verdict"] for summary in found)
    skipped = verdicts.pop("skipped", 0)
    lines = []
    errors = sum(outcome.verdict == "error" for outcome in judged)
    if verdicts or errors:
        parts = [f"{count} {verdict}" for verdict, count in verdicts.items()]
        lines.append(f"{plural(verdicts.total(), 'point')} judged: {', '.join(parts) or 'none'}")
        if errors:
            lines[-1] += f", {errors} without a verdict"
        seconds: dict[str, float] = {}
        for summary in found:
            for stage, value in _seconds(summary).items():
                seconds[stage] = seconds.get(stage, 0.0) + value
        if seconds:
            spent = ", ".join(f"{excerpt(name)} {value:.1f} s" for name, value in seconds.items())
            lines[-1] += f"; {spent}"
        waited = sum(v for s in found if isinstance(v := s.get("waited"), (int, float)))
        if waited > 1.0:
            lines[-1] += f"; waited {waited:.1f} s for ranks that other test runs held"
    lines += _references(found)
    notes = {excerpt(str(n), 2000): None for s in found for n in _listed(s.get("notes"))}
    lines += [f"note: {text}" for text in notes]
    for summary in found:
        for what, path in _mapped(summary.get("artefacts")).items():
            if not what.startswith("_"):
                lines.append(f"{excerpt(what)}: {excerpt(str(path), 2000)}")
    if skipped:
        reasons = Counter(
            excerpt(str(s.get("reason", "")), _LONGEST) for s in found if s["verdict"] == "skipped"
        )
        lines.append(f"{plural(skipped, 'point')} skipped: {reason_counts(reasons)}")
    return lines


def _seconds(summary: PointSummary) -> dict[str, float]:
    spent = summary.get("seconds")
    return {k: v for k, v in _mapped(spent).items() if isinstance(v, (int, float))}


def _mapped(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _references(found: Sequence[PointSummary]) -> list[str]:
    """The line `references: 3 reused, 1 run`; none if no reference was looked up in the cache.

    A reference that one xdist worker ran and another reused counts as run.
    """
    reused: dict[str, bool] = {}
    for summary in found:
        for key, value in _mapped(summary.get("references")).items():
            reused[key] = bool(value) and reused.get(key, True)
    count = sum(reused.values())
    return [f"references: {count} reused, {len(reused) - count} run"] if reused else []
