"""Formats the report of `assert_invariants`, and the summary of what a pytest run learned."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.core.usage import excerpt
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.learn import OBSERVED, REPORTED
from pytest_trainsafe.report.rows import head, row, write_lines
from pytest_trainsafe.sweep.point_summary import PROPERTY, plural

if TYPE_CHECKING:
    import pytest

    from pytest_trainsafe.config.settings import Settings
    from pytest_trainsafe.judges.contract import FindingsJudgement
    from pytest_trainsafe.judges.learn.invariant import Invariant
    from pytest_trainsafe.judges.learn.relation import Relation
    from pytest_trainsafe.judges.learn.use.from_tests import LearnedPack

#: The most new and other invariants that the terminal lists, and the most characters of a record.
_MAX_NEW, _MAX_LISTED, _LONGEST = 5, 12, 300


def message(judgement: FindingsJudgement) -> str:
    """The message for a judgement of `assert_invariants` that is not a pass."""
    wrong = judgement.verdict == "fail"
    verdict = "breaks learned invariants" if wrong else "is inconclusive, so not a pass"
    lines = head(f"trainsafe: {judgement.what} {verdict}")
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


def write_learned(
    reporter: pytest.TerminalReporter, settings: Settings, reports: Iterable[pytest.TestReport]
) -> None:
    """Learns the pack that the settings name from the healthy tests that passed, and reports it."""
    reporter.write_sep("=", "trainsafe: learned invariants")
    write_lines(reporter, learned_lines(settings, reports))


def learned_lines(settings: Settings, reports: Iterable[pytest.TestReport]) -> list[str]:
    """Learns the pack that the settings name from the tests that passed; returns lines to print."""
    from pytest_trainsafe.judges.learn.use.from_tests import learn_pack
    from pytest_trainsafe.judges.learn.use.judged import observed_run
    from pytest_trainsafe.trace.reader import Trace

    kept, failed = _observed(reports)
    passed, lines = [], []
    for folder, (nodeid, verdict) in kept.items():
        if verdict == "pass" and nodeid not in failed:
            passed.append(folder)
        else:
            why = "the test failed" if verdict == "pass" else f"its verdict is {verdict}"
            lines.append(f"not learned from {nodeid}: {why}")
    if not passed:
        why = (
            "no healthy test passed"
            if kept
            else "no test marked healthy=True called assert_trainsafe"
        )
        return [*lines, f"no pack was written, because {why}"]
    try:
        runs = [observed_run(Trace.open(folder)) for folder in passed]
        learned = learn_pack(settings.learn, Path(settings.root), runs, settings.relations)
    except TrainsafeError as error:
        return [*lines, f"no pack was written: {error}"]
    return [*lines, *lines_of(learned)]


def write_reported(
    reporter: pytest.TerminalReporter, settings: Settings, reports: Iterable[pytest.TestReport]
) -> None:
    """Says which rules of the suite's packs were broken, in how many tests, and where first."""
    if settings.suite_packs or settings.packs:
        reporter.write_sep("=", "trainsafe: packs, reported only")
        write_lines(reporter, reported_lines(settings.packs, reports))


def reported_lines(packs: Sequence[str], reports: Iterable[pytest.TestReport]) -> list[str]:
    """The lines of `write_reported`."""
    names, checked = ", ".join(packs), set[str]()
    broken: dict[str, dict[str, str]] = {}
    for report in reports:
        for made in _artefacts(report, REPORTED):
            checked.add(report.nodeid)
            for rule, record in json.loads(made):
                broken.setdefault(str(rule), {}).setdefault(report.nodeid, str(record))
    if not broken:
        return [f"{plural(len(checked), 'test')} kept all rules of {names} that applied"]
    tests = {nodeid for where in broken.values() for nodeid in where}
    some = f"{plural(len(tests), 'test')} of {len(checked)}"
    what = f"{plural(len(broken), 'rule')} of {names}"
    why = "no test failed for it, because of --trainsafe-packs-report"
    lines = [f"{some} broke {what}; {why}"]
    for rule, where in sorted(broken.items(), key=lambda each: (-len(each[1]), each[0])):
        first, record = next(iter(where.items()))
        lines.append(f"{rule}: {plural(len(where), 'test')}, first {first}")
        lines.append(f"  {excerpt(record, _LONGEST)}")
    return lines


def _artefacts(report: pytest.TestReport, what: str) -> list[str]:
    """The artefacts of one name that a test's summaries have."""
    found = []
    for name, value in report.user_properties:
        summary = json.loads(str(value)) if name == PROPERTY else {}
        made = summary.get("artefacts") if isinstance(summary, dict) else None
        text = made.get(what) if isinstance(made, dict) else None
        if isinstance(text, str):
            found.append(text)
    return found


def _observed(
    reports: Iterable[pytest.TestReport],
) -> tuple[dict[str, tuple[str, str]], set[str]]:
    """Reads which tests kept a trace, and which tests failed.

    Returns a dict from the folder of each kept trace to the node id and the verdict of its test,
    and the node ids of the failed tests.
    """
    kept: dict[str, tuple[str, str]] = {}
    failed = set()
    for report in reports:
        if report.outcome == "failed":
            failed.add(report.nodeid)
        for name, value in report.user_properties:
            summary = json.loads(str(value)) if name == PROPERTY else {}
            made = summary.get("artefacts") if isinstance(summary, dict) else None
            folder = made.get(OBSERVED) if isinstance(made, dict) else None
            if isinstance(folder, str):
                kept[folder] = report.nodeid, str(summary.get("verdict"))
    return kept, failed


def lines_of(learned: LearnedPack) -> list[str]:
    """What was learned, in lines for the terminal."""
    change = learned.update
    read = f"{plural(learned.runs, 'run')} of {plural(learned.programs, 'program')}"
    count = plural(len(change.pack.invariants), "invariant")
    lines = [f"learned from {read} ({learned.records} records): {count} in {learned.path}"]
    known = learned.relations
    lines += _listed("new", change.new, known, _MAX_NEW)
    lines += _listed("changed", [after for _, after in change.changed], known)
    lines += _listed(
        "no longer supported by these runs, and kept until you delete them",
        change.unsupported,
        known,
    )
    if change.empty:
        lines.append("the invariants are the same as before")
    if learned.runs == 1:
        lines.append(
            "with another seed, most of these rules are checked only after a run with a second "
            "seed has kept them too: learn from one"
        )
    return lines


def _listed(
    what: str,
    invariants: Sequence[Invariant],
    relations: Mapping[str, Relation],
    most: int = _MAX_LISTED,
) -> list[str]:
    """The number of some invariants by relation, and sentences of the first in the pack.

    Each sentence has the id by which the pack lists the invariant.
    """
    from pytest_trainsafe.judges.learn.packs.parts import parts_of
    from pytest_trainsafe.judges.learn.wording import in_words

    if not invariants:
        return []
    of = Counter(each.claim.relation for each in invariants)
    lines = [
        f"{len(invariants)} {what}: {', '.join(f'{n} {name}' for name, n in of.most_common())}"
    ]
    ordered = [each for part in parts_of(invariants, relations) for each in part.invariants]
    for each in ordered[:most]:
        sentence = in_words(relations[each.claim.relation].explain(each.claim).sentence)
        lines.append(f"  {excerpt(sentence, _LONGEST)} ({each.id})")
    if len(ordered) > most:
        lines.append(f"  and {len(ordered) - most} more")
    return lines
