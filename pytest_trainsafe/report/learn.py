"""The learn judge's texts: the report of `assert_invariants`, and what a pytest run learned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.report.rows import head, row
from pytest_trainsafe.sweep.point_summary import PointSummary, plural

if TYPE_CHECKING:
    from pytest_trainsafe.config.settings import Settings
    from pytest_trainsafe.judge.learn.from_tests import LearnedPack
    from pytest_trainsafe.judge.learn.invariant import Invariant
    from pytest_trainsafe.judge.learn_judge import LearnJudgement

#: The most invariants of one kind that the terminal lists.
MAX_LISTED = 12


def learn_message(judgement: LearnJudgement, what: str) -> str:
    """The report of a judgement that is no pass; `what` names the run."""
    wrong = judgement.verdict == "fail"
    verdict = "breaks learned invariants" if wrong else "is inconclusive, so not a pass"
    lines = head(f"trainsafe: {what} {verdict}")
    for finding in judgement.findings:
        about = "" if finding.about is None else f" · {finding.about}"
        lines += ["", f"  {finding.check}{about}"]
        lines += [f"    {line}" for line in finding.message.splitlines()]
    if judgement.not_compared:
        lines.append("")
    for text in judgement.not_compared:
        label, _, rest = text.partition(": ")
        lines += row(label, rest)
    return "\n".join(lines)


def learned_lines(
    settings: Settings, summaries: Sequence[tuple[str, PointSummary]], failed: Collection[str] = ()
) -> list[str]:
    """Learns the pack that the settings name from the tests that passed; what to print of it.

    `failed` has the node ids of tests that failed, whatever their verdict.
    """
    from pytest_trainsafe.judge.learn.from_tests import learn_pack
    from pytest_trainsafe.judge.learn_judge import observed_run
    from pytest_trainsafe.trace.reader import Trace

    kept = [(nodeid, s) for nodeid, s in summaries if s.get("observed")]
    passed, lines = [], []
    for nodeid, summary in kept:
        if summary["verdict"] == "pass" and nodeid not in failed:
            passed.append(summary)
        else:
            why = summary["verdict"]
            why = "the test failed" if why == "pass" else f"its verdict is {why}"
            lines.append(f"not learned from {nodeid}: {why}")
    if not passed:
        why = "no healthy test passed" if kept else "no test that ran is marked healthy=True"
        return [*lines, f"no pack was written, because {why}"]
    try:
        runs = [observed_run(Trace.open(Path(summary["observed"]))) for summary in passed]
        learned = learn_pack(settings.learn, Path(settings.root), runs, settings.relations)
    except TrainsafeError as error:
        return [*lines, f"no pack was written: {error}"]
    return [*lines, *_lines(learned)]


def _lines(learned: LearnedPack) -> list[str]:
    change = learned.update
    read = f"{plural(learned.runs, 'run')} of {plural(learned.programs, 'program')}"
    count = plural(len(change.pack.invariants), "invariant")
    lines = [f"learned from {read} ({learned.records} records): {count} in {learned.path}"]
    lines += _listed("new", change.new)
    lines += _listed("changed", [after for _, after in change.changed])
    lines += _listed(
        "no longer supported by these runs, and kept until you delete them", change.unsupported
    )
    if change.empty:
        lines.append("the rules are the same as before")
    return lines


def _listed(what: str, invariants: Sequence[Invariant]) -> list[str]:
    if not invariants:
        return []
    ids = [invariant.id for invariant in invariants]
    more = f", and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else ""
    return [f"{len(ids)} {what}: {', '.join(ids[:MAX_LISTED])}{more}"]
