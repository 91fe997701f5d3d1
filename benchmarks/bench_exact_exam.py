"""Puts the judge of exact numbers to an exam that was written without reading it.

`exact_exam/` has programs of parallel training, each with published bugs and its healthy twin.
Every bug and every twin is one test of `assert_proved_equivalent` in one run of pytest.  A bug
should be refuted, best at the module that it is in; a proof of it is a false proof.  A twin should
be proved; a refutation of it is a false refutation.  Both may be not covered, under a name.

    python benchmarks/bench_exact_exam.py
    python benchmarks/bench_exact_exam.py --only ring vocab     # programs
    python benchmarks/bench_exact_exam.py --check               # the exam itself, in plain float64
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from _measure import ROOT, finish, machine, show

FOLDER = Path(__file__).with_name("exact_exam")
sys.path.insert(0, str(FOLDER))

import exact_plain  # noqa: E402
from exact_cases import CASES, TWINS, Case  # noqa: E402

Row = dict[str, Any]

#: A relative difference in float64 that no rounding makes in these small programs, and one that it
#: may make.
FAR, NEAR = 1e-9, 1e-12

TEST = """
import pytest
from exact_cases import CASES, TWINS
from pytest_trainsafe import assert_proved_equivalent

NAMES = set({names!r})

def _tests():
    for case, bug in [(each, each.bug) for each in CASES] + [(each, "") for each in TWINS]:
        name = case.name if bug else case.twin
        if name in NAMES:
            mark = pytest.mark.trainsafe(
                case.module + ":train", **case.point, args=case.args,
                candidate_args=dict(bug=bug) if bug else dict(),
            )
            yield pytest.param(name, id=name, marks=mark)

@pytest.mark.parametrize("name", list(_tests()))
def test_exam(name, candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)
"""

CONFTEST = """
import json
import os


def pytest_runtest_logreport(report):
    # Under pytest-xdist, the reports of the workers reach the controller too.
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    found = getattr(report, "trainsafe_findings", None) or []
    row = {"name": report.nodeid.partition("[")[2].removesuffix("]"), "outcome": report.outcome,
           "when": report.when, "seconds": round(report.duration, 1), "findings": found,
           "text": report.longreprtext if not report.passed else ""}
    with open(os.environ["EXACT_EXAM_ROWS"], "a", encoding="utf-8") as rows:
        rows.write(json.dumps(row) + "\\n")
"""

#: How a bug and a twin may end, the best end first.  A refutation names the place of the bug, or
#: the bug concerns all parameters alike and has none, or the report starts elsewhere.
BUG_ENDS = ("refuted, named", "all alike", "elsewhere", "not covered", "error", "false proof")
TWIN_ENDS = ("proved", "not covered", "error", "false refutation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PREFIX", default=[""])
    parser.add_argument("--check", action="store_true", help="Check the exam, not the judge")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="Keep a line of JSON per test")
    parser.add_argument("--jobs", type=int, default=1, help="Processes of pytest")
    asked = parser.parse_args()
    facts = machine()
    bugs = [case for case in CASES if case.name.startswith(tuple(asked.only))]
    twins = [case for case in TWINS if case.twin.startswith(tuple(asked.only))]
    if asked.check:
        finish("exact_exam_check", facts, {"wrong": _check(bugs, twins)})
        return
    names = [case.name for case in bugs] + [case.twin for case in twins]
    rows = _by_name(names, _judged(names, asked.rows, asked.jobs))
    ends = {case.name: _bug_end(case, rows.get(case.name)) for case in bugs}
    twin_ends = {case.twin: _twin_end(rows.get(case.twin)) for case in twins}
    _tables(bugs, ends, twin_ends)
    for name, end in (ends | twin_ends).items():
        if end not in (*BUG_ENDS[:2], TWIN_ENDS[0]):
            print(f"{end}: {name}: {_said(rows.get(name))}")
    figures = {
        "bugs": dict(Counter(ends.values())),
        "twins": dict(Counter(twin_ends.values())),
        "missed": {n: e for n, e in (ends | twin_ends).items() if e in ("error", *_FALSE)},
    }
    finish("exact_exam", facts, figures)
    sys.exit(any(end in _FALSE for end in (ends | twin_ends).values()))


_FALSE = ("false proof", "false refutation")


def _judged(names: Sequence[str], kept: Path | None, jobs: int) -> list[Row]:
    """One row for each test that pytest ran."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_exam.py").write_text(TEST.format(names=list(names)))
        Path(folder, "conftest.py").write_text(CONFTEST)
        Path(folder, "pytest.ini").write_text(f"[pytest]\npythonpath = {FOLDER}\n")
        written = kept or Path(folder, "rows.jsonl")
        written.write_text("")
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", folder]
        command += ["-n", str(jobs)] if jobs > 1 else []
        environ = os.environ | {"EXACT_EXAM_ROWS": str(written.resolve())}
        subprocess.run(command, cwd=folder, env=environ, check=False, stdout=sys.stderr)
        return [json.loads(line) for line in written.read_text().splitlines()]


def _by_name(names: Sequence[str], rows: Sequence[Row]) -> dict[str, Row]:
    """The rows by the names of cases and twins: an id begins with the Point."""
    found = {}
    for row in rows:
        fitting = [name for name in names if f"-{row['name']}".endswith(f"-{name}")]
        if fitting:
            found[max(fitting, key=len)] = row
    return found


def _end(row: Row | None) -> str:
    """Proved, refuted, not covered or error."""
    if row is None:
        return "error"
    if row["outcome"] == "passed":
        return "proved"
    verdicts = {finding["verdict"] for finding in row["findings"]}
    if "fail" in verdicts:
        return "refuted"
    return "not covered" if "inconclusive" in verdicts else "error"


def _bug_end(case: Case, row: Row | None) -> str:
    end = _end(row)
    if end == "proved":
        return "false proof"
    if end == "refuted":
        assert row is not None
        if not case.names:
            return "all alike"
        return "refuted, named" if _named(case, row) else "elsewhere"
    return end


def _twin_end(row: Row | None) -> str:
    end = _end(row)
    return "false refutation" if end == "refuted" else end


def _named(case: Case, row: Row) -> bool:
    """Whether the first failing finding is about what the case names."""
    failing = [each for each in row["findings"] if each["verdict"] == "fail"]
    first = min(failing, key=lambda each: each.get("order", 0))
    words = _about(first)
    patterns = [each for name in case.names for each in (name, f"{name}.*")]
    return any(fnmatchcase(word, each) for word in words for each in patterns)


def _about(finding: Row) -> list[str]:
    """The path of the tensor or module that a finding is about, and the kind of the tensor."""
    where = finding.get("where")
    if where:
        path = ".".join(word for word in (where.get("module"), where["name"]) if word)
        return [path, where["kind"]]
    return [(finding.get("subject") or {}).get("path", "")]


def _said(row: Row | None) -> str:
    """What the report said first."""
    if row is None:
        return "no row: pytest did not run it"
    found = row["findings"]
    found = sorted(found, key=lambda each: (each["verdict"] != "fail", each.get("order", 0)))
    if found:
        about = " ".join(_about(found[0]))
        return f"{found[0]['check']} · {about} · {found[0]['message'][:300]}"
    return str(row["text"][-300:])


def _tables(bugs: Sequence[Case], ends: dict[str, str], twins: dict[str, str]) -> None:
    counts: dict[str, Counter[str]] = {}
    for case in bugs:
        counts.setdefault(case.kind, Counter())[ends[case.name]] += 1
    counts["all"] = sum(counts.values(), Counter())
    table = [[kind, *[got[end] for end in BUG_ENDS]] for kind, got in counts.items()]
    show("Bugs", ["class", *BUG_ENDS], table)
    got = Counter(twins.values())
    show("Healthy twins", TWIN_ENDS, [[got[end] for end in TWIN_ENDS]])


def _check(bugs: Sequence[Case], twins: Sequence[Case]) -> list[str]:
    """The bugs that do not change the function and the twins that do, by plain runs in float64."""
    os.environ["PYTHONPATH"] = str(ROOT)
    wrong = []
    for twin in twins:
        mine = [case for case in bugs if case.twin == twin.twin]
        reference = exact_plain.run(twin.module, {}, [twin.args])[0][0]
        several = [dict(twin.args), *[dict(case.args, bug=case.bug) for case in mine]]
        runs = exact_plain.run(twin.module, twin.point, several)
        for name, ranks in zip([twin.twin, *[case.name for case in mine]], runs, strict=True):
            found = exact_plain.distance(reference, ranks, twin.point)
            most = max(found, key=lambda each: found[each])
            right = found[most] < NEAR if name == twin.twin else found[most] > FAR
            print(f"{'' if right else 'WRONG '}{name}: {found[most]:.1e} at {most}", flush=True)
            wrong += [] if right else [name]
    return wrong


if __name__ == "__main__":
    main()
