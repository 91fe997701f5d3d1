"""The terminal summary: one row per judged Point, from plain data on the tests' reports.

A test's PointSummary is stored as JSON in its report's `user_properties`, which pytest-xdist sends
to the controller and JUnit files include.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_trainsafe.sweep.point_summary import PROPERTY, PointSummary, plural, reason_counts

if TYPE_CHECKING:
    import pytest

#: Rows shown without `-v`.
MAX_ROWS = 20


def collect_summaries(
    reports: Iterable[pytest.TestReport],
) -> list[tuple[str, PointSummary]]:
    """Node id and PointSummary of every report that has one, each once, in order.

    Duplicates arise because a test's reports repeat the properties of its earlier phases.
    """
    found: dict[tuple[str, str], PointSummary] = {}
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY and isinstance(value, str):
                found.setdefault((report.nodeid, value), json.loads(value))
    return [(nodeid, summary) for (nodeid, _), summary in found.items()]


def write_summary(reporter: pytest.TerminalReporter) -> None:
    """Writes the summary section; nothing if no test has a PointSummary, or with `-q`."""
    stats: Mapping[str, Sequence[pytest.TestReport]] = reporter.stats
    summaries = collect_summaries(report for group in stats.values() for report in group)
    judged = [(nodeid, s) for nodeid, s in summaries if s["verdict"] != "skipped"]
    # With pytest-xdist the workers' collection output is not shown, so skips are reported here.
    counted_before = not reporter.config.pluginmanager.hasplugin("dsession")
    verbosity = reporter.config.get_verbosity()
    if verbosity < 0 or not (judged or (summaries and not counted_before)):
        return
    reporter.write_sep("=", "trainsafe")
    for line in table(judged, detailed=verbosity > 0):
        reporter.write_line(line)
    for line in totals([summary for _, summary in summaries]):
        reporter.write_line(line)


def write_learned(reporter: pytest.TerminalReporter) -> None:
    """Learns a pack from the run's healthy tests with --trainsafe-learn, and says what it has."""
    from pytest_trainsafe.config.settings import SETTINGS

    settings = reporter.config.stash[SETTINGS]
    if not settings.learn:
        return
    from pytest_trainsafe.report.learn import learned_lines

    stats: Mapping[str, Sequence[pytest.TestReport]] = reporter.stats
    summaries = collect_summaries(report for group in stats.values() for report in group)
    failed = {r.nodeid for group in ("failed", "error") for r in stats.get(group, ())}
    reporter.write_sep("=", "trainsafe: learned invariants")
    for line in learned_lines(settings, summaries, failed):
        reporter.write_line(line)


def table(judged: Sequence[tuple[str, PointSummary]], *, detailed: bool) -> list[str]:
    """The lines of the table: failures first, then by the largest error relative to its tolerance.

    `detailed` shows every row, with full node ids and the tensor of the largest relative error.
    """
    if not judged:
        return []
    severity = {"fail": 0, "inconclusive": 1}
    ordered = sorted(
        judged, key=lambda entry: (severity.get(entry[1]["verdict"], 2), -_worst(entry[1])[0])
    )
    most = len(ordered) if detailed else MAX_ROWS
    last = "test, worst tensor" if detailed else "test"
    rows = [("verdict", "tensors", "error/allowed", "seconds", last)]
    rows += [_row(nodeid, summary, detailed) for nodeid, summary in ordered[:most]]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]))
        for row in rows
    ]
    if len(ordered) > most:
        lines.append(f"... and {len(ordered) - most} more (-v shows all)")
    return lines


def totals(summaries: Sequence[PointSummary]) -> list[str]:
    """`3 points judged: 3 pass; launch 9.1 s, train 0.4 s` and `2 points skipped: <reason> (2)`."""
    verdicts = Counter(summary["verdict"] for summary in summaries)
    skipped = verdicts.pop("skipped", 0)
    lines = []
    if verdicts:
        shown = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        lines.append(f"{plural(verdicts.total(), 'point')} judged: {shown}")
        seconds: dict[str, float] = {}
        for summary in summaries:
            for stage, value in summary.get("seconds", {}).items():
                seconds[stage] = seconds.get(stage, 0.0) + value
        if seconds:
            spent = ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items())
            lines[-1] += f"; {spent}"
    lines += _references(summaries)
    lines += [f"note: {text}" for text in {n: None for s in summaries for n in s.get("notes", [])}]
    if skipped:
        reasons = Counter(s.get("reason", "") for s in summaries if s["verdict"] == "skipped")
        lines.append(f"{plural(skipped, 'point')} skipped: {reason_counts(reasons)}")
    return lines


def _references(summaries: Sequence[PointSummary]) -> list[str]:
    """`references: 3 reused, 1 run`; nothing if no reference was looked up in the cache.

    A reference that one xdist worker ran and another reused counts as run.
    """
    reused: dict[str, bool] = {}
    for summary in summaries:
        for key, value in summary.get("references", {}).items():
            reused[key] = value and reused.get(key, True)
    count = sum(reused.values())
    return [f"references: {count} reused, {len(reused) - count} run"] if reused else []


def _row(nodeid: str, summary: PointSummary, detailed: bool) -> tuple[str, str, str, str, str]:
    ratio, where = _worst(summary)
    rungs = summary.get("rungs", [])
    spent = sum(summary.get("seconds", {}).values())
    return (
        summary["verdict"],
        "/".join(str(rung["tensors"]) for rung in rungs) or "-",
        f"{ratio:.2g}" if rungs else "-",
        f"{spent:.1f}",
        (nodeid + (f", {where}" if where else "")) if detailed else nodeid.rpartition("/")[2],
    )


def _worst(summary: PointSummary) -> tuple[float, str]:
    """The largest error over all rungs as a multiple of its tolerance, and its tensor and dtype."""
    rungs = [rung for rung in summary.get("rungs", []) if rung["tensors"]]
    if not rungs:
        return 0.0, ""
    worst = max(rungs, key=lambda rung: rung["worst"])
    return worst["worst"], f"{worst['worst_name']} ({worst['dtype']})" if worst[
        "worst_name"
    ] else ""
