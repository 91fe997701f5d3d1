"""Judges thirty programs that draw their data in every usual way, clean and with two faults each.

The clean programs must pass in float32 and in bfloat16 at default settings.  Of the faults, "cast"
rounds a tensor to bfloat16 in the float32 run alone, and "term" drops a term of relative size 1e-4.
Each must fail.  `--draws` makes other data in float64: "torch" draws in the dtype of the rung, as
torch does, and a number is the share of noise that is drawn anew there.  `--without-condition`
takes every Run as a measure of rounding, whatever it computed: some faults then pass.

    python benchmarks/bench_data_sources.py
    python benchmarks/bench_data_sources.py --only drawn_randn_like
    python benchmarks/bench_data_sources.py --faults cast --draws 0.01 --without-condition
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _judged import Row
from _measure import finish, machine, show
from _trials import Trial, judged

FOLDER = Path(__file__).with_name("data_sources")
sys.path.insert(0, str(FOLDER))

from drawn_cases import CASES  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--faults", nargs="+", default=["", "bfloat16", "cast", "term"])
    parser.add_argument("--draws", help='"torch", or the share of noise that float64 draws anew')
    parser.add_argument("--without-condition", action="store_true")
    asked = parser.parse_args()
    facts = machine()
    if asked.without_condition:
        _without_condition()
    trials = [
        Trial(
            case.name,
            "drawn_as_before:train" if asked.draws else f"{case.module}:train",
            case.point | ({"dtype": "bfloat16"} if fault == "bfloat16" else {}),
            "" if fault == "bfloat16" else fault,
            _arguments(case.module, asked.draws),
        )
        for case in CASES
        if not asked.only or case.name in asked.only
        for fault in asked.faults
    ]
    rows = []
    for row in judged(trials):
        row["expected"] = "fail" if row["fault"] else "pass"
        rows.append(row)
        right = "right" if row["verdict"] == row["expected"] else "WRONG"
        what = row["fault"] or row["point"].get("dtype", "float32")
        print(f"{right} {row['trial']} {what}: {row['verdict']} {row.get('worst')}", flush=True)
        if right == "WRONG":
            print("\n".join(row["report"].splitlines()[:8]), flush=True)
    show("Programs by how they draw their data", ["", "judged", "right"], _table(rows))
    wrong = [row for row in rows if row["verdict"] != row["expected"]]
    finish("data_sources", facts, {"judged": len(rows), "wrong": wrong})
    sys.exit(bool(wrong))


def _arguments(module: str, draws: str | None) -> dict[str, object]:
    if not draws:
        return {}
    return {"module": module, "share": 0.0 if draws == "torch" else float(draws)}


def _table(rows: list[Row]) -> list[list[object]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        name = row["fault"] or f"clean, {row['point'].get('dtype', 'float32')}"
        groups.setdefault(name, []).append(row)
    return [
        [name, len(each), sum(row["verdict"] == row["expected"] for row in each)]
        for name, each in groups.items()
    ]


def _without_condition() -> None:
    """Use every Run as a measure of rounding."""
    from pytest_trainsafe.judges.compare import rung

    vars(rung)["flaw_of"] = lambda *_: None


if __name__ == "__main__":
    main()
