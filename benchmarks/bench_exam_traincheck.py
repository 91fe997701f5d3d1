"""Counts what TrainCheck 0.2.0 finds in the exam, beside our packs of the same two runs.

For each program of `learn_exam`, TrainCheck collects traces of the two healthy runs with other
seeds that the column `own2` of bench_learn_exam.py learns from, infers invariants from both, and
checks the healthy twin and the mistake, or a third run of a program without a mistake.  A mistake
is caught if its variant violates an invariant that the twin keeps.  "All" are all invariants;
"filtered" are those that are left if its user ignores the relations on orders of calls, as its
tutorial says.  `own2` is counted for the same programs, in processes of its own, at the default
confidence.  TrainCheck is in an environment of its own:

    python -m venv PEER
    PEER/bin/pip install -c constraints.txt traincheck==0.2.0
    python benchmarks/bench_exam_traincheck.py --peer PEER --rows rows.jsonl

TrainCheck collects everything with its default options, and follows all variables of a program that
are modules and that it can find: by proxy objects, else, where a program fails with those, by
tensor subclasses, else not at all.  Nothing is sampled, and no program is made smaller.

The programs are those that `--half 40` leaves out, in an order that `--order` draws, so that the
first of them are a fair sample; those on two ranks are the last.  A process that uses more than
`--limit` CPU seconds is killed, and its program counts as not finished.  Each program is a line of
`--rows`, and is not run again; in a folder that is kept, neither is a stage of a program.
Seconds are CPU seconds of whole processes, with imports; those of `own2` are without its kept runs
only if there is no `.bench`.  Without `--peer`, the rows are shown.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _measure import ROOT, finish, machine, show
from _traincheck_sides import Command, child

sys.path.insert(0, str(ROOT / "benchmarks" / "learn_exam"))
from _exam_peer import ExamPeer, Verdict, alarms
from bench_traincheck import INSTALL, PEER, peer_of
from exam_cases import Case, Program
from exam_sets import halves

#: The part of the exam: the half of the first set that this seed leaves out.
NUMBER, SEED = 1, 40

FOLDER = ROOT / "benchmarks" / "learn_exam"

Rows = Sequence[dict[str, Any]]


def drawn(order: int) -> list[Case | Program]:
    """The programs in the order in which they are counted."""
    cases, healthy = halves(NUMBER, SEED)[1]
    every: list[Case | Program] = [*cases, *healthy]
    programs = sorted(every, key=lambda each: each.name)
    programs = random.Random(order).sample(programs, len(programs))
    return sorted(programs, key=lambda each: each.world)


def own(name: str, folder: Path) -> dict[str, Any]:
    """What our packs of the same runs say of a program, and their CPU seconds."""
    rows = folder / "own.json"
    rows.unlink(missing_ok=True)
    program = ROOT / "benchmarks" / "bench_learn_exam.py"
    command: Command = [sys.executable, program, "--other-half", str(SEED)]
    command += ["--columns", "own2", "--rows", rows, "--names", name]
    ran = child(command, folder, 0)
    found: dict[str, Any] = {"seconds": ran.seconds}
    if not rows.exists():  # nothing can be learned from its runs
        return found
    (row,) = json.loads(rows.read_text())
    caught, alarmed = (bool(row[part]["reported"]) for part in ("found", "alarms"))
    return {**found, "rules": row["rules"], "caught": caught, "alarms": alarmed}


def counted(rows: Rows, view: str) -> list[object]:
    """A line of the table of the programs that TrainCheck finished."""
    if view == "own2":
        caught = [row["own"].get("caught", False) for row in rows]
        alarmed = [row["own"].get("alarms", False) for row in rows]
        seconds = [row["own"]["seconds"] for row in rows]
    else:
        caught = [alarms(row["bug"], view) > 0 for row in rows]
        alarmed = [alarms(row["twin"], view) > 0 for row in rows]
        seconds = [sum(row["seconds"].values()) for row in rows]
    faulty = [row["faulty"] for row in rows]
    twins = [each for each, is_case in zip(alarmed, faulty, strict=True) if is_case]
    healthy = [each for each, is_case in zip(alarmed, faulty, strict=True) if not is_case]
    return [
        view if view == "own2" else f"TrainCheck, {view}",
        f"{sum(caught)} of {sum(faulty)}",
        f"{sum(twins)} of {len(twins)}",
        f"{sum(healthy)} of {len(healthy)}",
        f"{statistics.median(seconds):.0f}" if seconds else "",
    ]


def summary(rows: Rows) -> None:
    """Show the tables."""
    done = [row for row in rows if not row["unfinished"]]
    lines = [counted(done, view) for view in ("all", "filtered", "own2")]
    columns = ["", "caught", "twins", "healthy", "CPU s a program"]
    show(f"{len(done)} of {len(rows)} programs that were tried", columns, lines)
    each = [
        [
            row["program"],
            row["unfinished"] or row["style"],
            row["rules"],
            f"{alarms(row['bug'], 'all')} ({alarms(row['bug'], 'filtered')})",
            f"{alarms(row['twin'], 'all')} ({alarms(row['twin'], 'filtered')})",
            row["own"].get("caught", ""),
            row["own"].get("alarms", ""),
        ]
        for row in rows
    ]
    columns = ["", "style", "rules", "bug (filtered)", "twin (filtered)", "own2", "own2 twin"]
    show("Each program: violated invariants", columns, each)


def main() -> None:
    """Count, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help=f"An environment that has TrainCheck {PEER}")
    parser.add_argument("--rows", type=Path, required=True, help="The file that rows are added to")
    parser.add_argument("--order", type=int, default=0, metavar="SEED")
    parser.add_argument("--most", type=int, help="Count at most this many more programs")
    parser.add_argument("--limit", type=int, default=900, help="CPU seconds of a process")
    parser.add_argument("--folder", type=Path, help="Keep what a program's stages make here")
    asked = parser.parse_args()
    facts = machine() | {"traincheck": PEER}
    rows = [json.loads(line) for line in read(asked.rows)]
    if asked.peer is None:
        print(f"Nothing is measured. {INSTALL}")
    else:
        peer, counts = peer_of(asked.peer), {row["program"] for row in rows}
        left = [each for each in drawn(asked.order) if each.name not in counts]
        for each in left[: asked.most]:
            with tempfile.TemporaryDirectory(prefix="trainsafe-traincheck-") as temporary:
                folder = (asked.folder or Path(temporary)).absolute() / each.name
                source = (FOLDER / f"{each.module}.py").read_text()
                found: Verdict = ExamPeer(each, folder, source, peer, asked.limit).verdict()
                rows.append(asdict(found) | {"own": own(each.name, folder)})
            with asked.rows.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(json.dumps(rows[-1]), flush=True)
    summary(rows)
    finish("exam_traincheck", facts, {"programs": len(drawn(asked.order)), "rows": rows})


def read(rows: Path) -> list[str]:
    """The lines of a file, which may not exist yet."""
    return rows.read_text().splitlines() if rows.exists() else []


if __name__ == "__main__":
    main()
