"""Judges a correct program with awkward numerics: no false failures and no empty passes.

Every variant of `adversarial_program.py` is judged at dp=2, at tp=2 and at both, in every dtype. A
`fail` is a false accusation, and a `pass` is empty if nothing trains in the variant. The exit
status is 1 if there is one of these.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _judged import Row, judged_rows, worst_of
from _measure import finish, machine, show
from adversarial_program import EMPTY, VARIANTS, train

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve

DTYPES = ("float64", "float32", "bfloat16", "float16")
POINTS = (Point.of(dp=2, tp=2), Point.of(tp=2), Point.of(dp=2))

#: More seeds for variants with few elements, whose rounding depends much on the seed.
SEEDS = {"0-dim gain": 20, "1-element gain": 5, "2-element gain": 5, "width 1": 5}

#: The number of Cases that one session judges; it keeps their references until it is closed.
CASES_OF_A_SESSION = 40


def main() -> None:
    asked = _arguments()
    facts = machine()
    rows = []
    cases = [
        (name, point, seed)
        for name in asked.variants
        for point in (POINTS[:1] if asked.quick else POINTS)
        for seed in range(min(SEEDS.get(name, 1), 2) if asked.quick else SEEDS.get(name, 1))
    ]
    for first in range(0, len(cases), CASES_OF_A_SESSION):
        rows += judge_cases(cases[first : first + CASES_OF_A_SESSION], asked.dtypes)
    wrong = show_variants(rows, asked.variants, asked.dtypes)
    print(f"\n{len(rows)} judged, {len(wrong)} wrong")
    finish("adversarial", facts, {"judged": len(rows), "wrong": wrong, "rows": rows})
    sys.exit(bool(wrong))


def judge_cases(cases: Sequence[tuple[str, Point, int]], dtypes: Sequence[str]) -> list[Row]:
    """Judges variants at Points and seeds; returns the rows."""
    rows = []
    settings = Settings(device="cpu", dtypes=tuple(dtypes))
    with tempfile.TemporaryDirectory(prefix="trainsafe-adversarial-") as temporary:
        session = Session(settings, Path(temporary))
        try:
            for name, point, seed in cases:
                seeded = Settings(device="cpu", dtypes=tuple(dtypes), seed=seed)
                given = VARIANTS[name]
                case = Case(point, resolve(train), seeded, given, given)
                for row in judged_rows(session, case):
                    row |= {"variant": name, "point": str(point), "seed": seed}
                    row["wrong"] = wrong_verdict(row)
                    rows.append(row)
                    if row["wrong"]:
                        said = [*row.get("findings", []), *row.get("doubts", []), ""][0]
                        said = row.get("error", said).partition("\n")[0]
                        where = f"{name}, {point}, {row['dtype']}, seed {seed}"
                        print(f"{row['wrong']}: {where}: {said}", file=sys.stderr, flush=True)
        finally:
            session.close()
    return rows


def wrong_verdict(row: Row) -> str:
    """What is wrong with a verdict; "" if it is right."""
    if row["verdict"] == "fail":
        return "accused"
    if row["verdict"] == "error":
        return "did not run"
    return "empty pass" if row["variant"] in EMPTY and row["verdict"] == "pass" else ""


def show_variants(
    rows: Sequence[Row], variants: Sequence[str], dtypes: Sequence[str]
) -> list[dict[str, Any]]:
    """Print a line for each variant, and return the rows whose verdict is wrong."""
    table = []
    for name in variants:
        cells: list[object] = [name, "inconclusive" if name in EMPTY else "no failure"]
        for dtype in dtypes:
            own = [row for row in rows if row["variant"] == name and row["dtype"] == dtype]
            cells += [_verdicts(own), f"{max(map(worst_of, own), default=(0.0, ''))[0]:.2f}"]
        table.append(cells)
    columns = ["", "expected"]
    for dtype in dtypes:
        columns += [dtype, "worst"]
    show("Adversarial numerics: verdicts, and worst error / allowed", columns, table)
    keys = ("variant", "point", "seed", "dtype", "wrong")
    return [{key: row[key] for key in keys} for row in rows if row["wrong"]]


def _verdicts(rows: Sequence[Row]) -> str:
    """A text such as "3 pass": each verdict with its count, and the guards if inconclusive."""
    counted: dict[str, int] = {}
    for row in rows:
        verdict = row["verdict"]
        if verdict == "inconclusive":
            verdict = f"inconclusive ({', '.join(row['inconclusive'])})"
        counted[verdict] = counted.get(verdict, 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counted.items()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--quick", action="store_true", help="One Point, fewer seeds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
