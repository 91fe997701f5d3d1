"""Judges random clean Points of every reference model: each failure is a false alarm.

The Points have all models, axes, options and dtypes, at awkward sizes (`_random_points.py`). Every
Point is judged as in a test with the default settings, but at every rung of its ladder. A line of
JSON for every Point and rung is added to the file `--rows` as soon as it is judged; the tables are
printed at the end.

    python benchmarks/bench_random.py --count 500 --jobs 2
    python benchmarks/bench_random.py --only 37      # one Point again, with its full report

A seed and an index determine a Point, on any machine. `--shard 0/4` judges every fourth Point,
`--resume` skips the Points that have rows already, and `--show FILE` prints the tables of the rows
in a file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from _judged import Row, count, judged_rows, worst_of
from _measure import ROOT, finish, machine, show
from _random_points import DTYPES, MAX_RANKS, Drawn, case_of, draw

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.runs.session import Session

#: The number of Points that one session judges; it keeps their references until it is closed.
POINTS_OF_A_SESSION = 50

#: The CPU on every machine, because a reference on a GPU rounds differently than ranks on CPUs.
SETTINGS = Settings(max_world_size=MAX_RANKS, device="cpu")


def main() -> None:
    asked = _arguments()
    if asked.only is not None:
        sys.exit(rerun(asked.seed, asked.only))
    facts, began = machine(), time.perf_counter()
    if asked.show:
        rows = read(asked.show)
    else:
        run(asked)
        rows = read(asked.rows)
    seconds = time.perf_counter() - began
    if not rows:
        raise SystemExit(f"there are no rows in {asked.show or asked.rows}")
    rejected: Counter[str] = Counter()
    for index in sorted({row["index"] for row in rows}):
        draw(rows[0]["draw_seed"], index, rejected)
    show_rows(rows, rejected)
    points = len({row["index"] for row in rows})
    alarms = sorted({row["index"] for row in rows if row["verdict"] == "fail"})
    print(f"\n{points} Points, {len(rows)} judged, {len(alarms)} Points with a false alarm")
    if not asked.show:
        print(f"{seconds:.0f} s, {60 * points / seconds:.0f} Points a minute; rows: {asked.rows}")
    finish("random", facts, {"points": points, "judged": len(rows), "alarms": alarms})
    sys.exit(bool(alarms))


def run(asked: argparse.Namespace) -> None:
    """Judge the requested Points, in `--jobs` processes that share them."""
    first, _, step = asked.shard.partition("/")
    wanted = range(int(first), asked.count, int(step))
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    if not asked.resume:
        asked.rows.write_text("")
    done = whole_points(asked.rows)
    context = multiprocessing.get_context("spawn")
    indexes: Any = context.Queue()
    for index in wanted:
        if index not in done:
            indexes.put(index)
    until = time.time() + asked.minutes * 60
    workers = [
        context.Process(target=work, args=(indexes, asked.seed, str(asked.rows), until))
        for _ in range(asked.jobs)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    indexes.cancel_join_thread()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a process that judges Points died; continue with --resume")


def whole_points(file: Path) -> set[int]:
    """The Points whose every rung is in a file of rows; rows of other Points are removed."""
    judged: dict[int, list[Row]] = {}
    for row in read(file):
        judged.setdefault(row["index"], []).append(row)
    whole = set()
    for index, rows in judged.items():
        case, _ = case_of(draw(rows[0]["draw_seed"], index, Counter()), SETTINGS)
        if [row["dtype"] for row in rows] == list(case.rungs):
            whole.add(index)
    kept = [row for index in judged if index in whole for row in judged[index]]
    file.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return whole


def work(indexes: Any, seed: int, rows: str, until: float) -> None:
    """Judge Points from the queue `indexes` until it is empty or the time `until` is reached."""
    with tempfile.TemporaryDirectory(prefix="trainsafe-random-") as temporary:
        session: Session | None = None
        judged = 0
        try:
            while time.time() < until:
                try:
                    index = indexes.get(timeout=0.2)
                except queue.Empty:
                    break
                if session is None or judged % POINTS_OF_A_SESSION == 0:
                    if session is not None:
                        session.close()
                    session = Session(SETTINGS, Path(temporary, str(judged)))
                judged += 1
                judge_point(session, draw(seed, index, Counter()), seed, rows)
        finally:
            if session is not None:
                for note in session.notes:
                    print(note, file=sys.stderr)
                session.close()


def judge_point(session: Session, drawn: Drawn, seed: int, rows: str) -> None:
    """Write the rows of one Point."""
    case, _ = case_of(drawn, SETTINGS)
    point = {
        "index": drawn.index,
        "draw_seed": seed,
        "program": drawn.program,
        "point": str(case.point),
        "reference_pp": drawn.pipeline,
        "arguments": dict(case.arguments),
        "seed": drawn.seed,
    }
    for row in judged_rows(session, case):
        with open(rows, "a", encoding="utf-8") as file:
            file.write(json.dumps({**point, **row}) + "\n")
        if row["verdict"] in ("fail", "error"):
            said = row["findings"] if row["verdict"] == "fail" else [_last(row["error"])]
            print(f"{row['verdict'].upper()} {row['dtype']} {drawn}\n  {said[0]}", file=sys.stderr)


def rerun(seed: int, index: int) -> int:
    """Judge one Point as a test does and print the report; returns 0 if it passes, else 1."""
    drawn = draw(seed, index, Counter())
    case, _ = case_of(drawn, SETTINGS)
    print(drawn)
    with tempfile.TemporaryDirectory(prefix="trainsafe-random-") as temporary:
        session = Session(SETTINGS, Path(temporary))
        try:
            for row in judged_rows(session, case):
                ratio, id = worst_of(row)
                print(f"{row['dtype']}: {row['verdict']}, worst {ratio:.3g} {id}")
                for line in (*row.get("findings", []), *row.get("doubts", [])):
                    print(f"  {line}")
                if row["verdict"] == "error":
                    print(row["error"])
            text = report_of(judge_case(session.candidate(case), session.reference(case)))
        finally:
            session.close()
    print(f"\n{text or 'passes'}")
    return int(bool(text))


def read(rows: Path) -> list[Row]:
    """The rows of a file; none if there is no file."""
    if not rows.exists():
        return []
    return [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]


def show_rows(rows: Sequence[Row], rejected: Counter[str]) -> None:
    """Print the tables of a run."""
    columns = ["", "judged", "pass", "false alarms", "inconclusive", "errors", "measured again"]
    verdicts = ("pass", "fail", "inconclusive", "error")

    def counts(name: str, own: Sequence[Row]) -> list[object]:
        again = sum(row.get("samples", 1) > 1 for row in own)
        return [name, len(own), *(count(own, verdict) for verdict in verdicts), again]

    for key, values in (("dtype", DTYPES), ("program", _values(rows, "program"))):
        table = [counts(value, [row for row in rows if row[key] == value]) for value in values]
        show(f"Random clean Points, by {key}", columns, [*table, counts("all", rows)])
    show_worst(rows, "Worst error / allowed, by whose rounding is allowed")
    guards = Counter(check for row in rows for check in row.get("inconclusive", []))
    show("Inconclusive, by guard", ["", "rungs"], [list(each) for each in guards.most_common()])
    show("Drawn again, by rule", ["", "times"], [list(each) for each in rejected.most_common(20)])
    for verdict in ("fail", "error"):
        for row in rows:
            if row["verdict"] == verdict:
                said = row["findings"][0] if verdict == "fail" else _last(row["error"])
                ratio = f"{worst_of(row)[0]:.2f} x " if verdict == "fail" else ""
                print(f"{verdict} {row['index']} {row['program']} {row['point']} {row['dtype']}:")
                print(f"  {ratio}{said}")


def show_worst(rows: Sequence[Row], title: str) -> None:
    """Print the worst ratio of each kind of tensor, by the dtype whose rounding is allowed."""
    judged = [row for row in rows if row["verdict"] != "error"]
    roundings = _values(judged, "rounding")
    kinds = sorted({kind for row in judged for kind in row["worst"]})
    table = []
    for kind in kinds:
        cells = []
        for rounding in roundings:
            own = [row["worst"].get(kind, {"ratio": 0.0}) for row in judged]
            of = [o["ratio"] for o, r in zip(own, judged, strict=True) if r["rounding"] == rounding]
            cells.append(f"{max(of, default=0.0):.2f}")
        table.append([kind, *cells])
    show(title, ["", *roundings], table)


def _values(rows: Iterable[Row], key: str) -> list[str]:
    return sorted({row[key] for row in rows})


def _last(error: str) -> str:
    """The most informative line of an error: the first with "Error", else the first."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return next((line for line in lines if "Error" in line), lines[0] if lines else "")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="Another seed draws other Points")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--shard", default="0/1", metavar="I/N")
    parser.add_argument("--jobs", type=int, default=1, help="The number of processes that judge")
    parser.add_argument("--minutes", type=float, default=1e6, help="Begin no Point after this time")
    parser.add_argument("--rows", type=Path, default=ROOT / "build" / "random-points.jsonl")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--only", type=int, metavar="INDEX")
    parser.add_argument("--show", type=Path, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="30 Points")
    asked = parser.parse_args()
    if asked.quick:
        asked.count = 30
    return asked


if __name__ == "__main__":
    main()
