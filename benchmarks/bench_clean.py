"""Judges clean Points of every reference model: each finding is a false alarm.

Every Point is judged in each dtype of the ladder (float64, float32, bfloat16) for each seed. Prints
Points that do not pass as they are found, and for each model and dtype the number of judged Points
and the largest ratio of an error to its allowance.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from _measure import finish, machine, show

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models.corpus import RANKS, clean
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.point_summary import PointSummary


def main() -> None:
    arguments = _arguments()
    facts = machine()
    judged: Counter[tuple[str, str]] = Counter()
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    alarms: list[dict[str, Any]] = []
    for program in arguments.programs:
        for seed in arguments.seeds:
            for summary, text in sweep(program, seed, arguments):
                for rung in summary["rungs"]:
                    where = program, rung["dtype"]
                    judged[where] += 1
                    name = f"{rung['worst_name']} at {summary['point']}, seed {seed}"
                    worst[where] = max(worst.get(where, (0.0, "")), (rung["worst"], name))
                if text:
                    alarms.append({"program": program, "seed": seed, "point": summary["point"]})
                    print(f"seed {seed}\n{text}", file=sys.stderr, flush=True)
    rows = [[*where, judged[where], f"{worst[where][0]:.2f}"] for where in sorted(judged)]
    show("Clean Points", ["", "dtype", "judged", "worst"], rows)
    for where in sorted(worst):
        print(f"  {where[0]} {where[1]}: {worst[where][0]:.3f} {worst[where][1]}")
    print(f"\n{sum(judged.values())} judged, {len(alarms)} false alarms")
    counts = {" ".join(where): count for where, count in judged.items()}
    ratios = {" ".join(where): ratio for where, ratio in worst.items()}
    finish("clean", facts, {"judged": counts, "worst": ratios, "alarms": alarms})
    sys.exit(bool(alarms))


def sweep(program: str, seed: int, arguments: argparse.Namespace) -> list[tuple[PointSummary, str]]:
    """Judges every clean Point of a program; returns summaries and reports ("" for a pass)."""
    settings = Settings(seed=seed, record=arguments.record, max_world_size=arguments.max_world_size)
    found: list[tuple[PointSummary, str]] = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-clean-") as temporary:
        session = Session(settings, Path(temporary))
        try:
            for case in clean(program, settings, arguments.dtype):
                published: list[PointSummary] = []
                candidate = session.candidate(case)
                candidate.runs.publish = published.append
                try:
                    text = report_of(judge_case(candidate, session.reference(case)))
                except GroupFailure as failure:
                    text = f"{program} at {case.point}: {failure}"
                session.discard(candidate)
                empty: PointSummary = {
                    "point": str(case.point),
                    "verdict": "fail",
                    "rungs": [],
                    "seconds": {},
                }
                found.append((published[0] if published else empty, text))
                verdict = "FALSE ALARM" if text else "pass"
                print(
                    f"{program} seed {seed} {case.point} {dict(case.arguments)} {verdict}",
                    file=sys.stderr,
                    flush=True,
                )
        finally:
            session.close()
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="*", choices=sorted(RANKS), default=sorted(RANKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--dtype", default="bfloat16", help="The last rung (default bfloat16)")
    parser.add_argument("--record", choices=("sketch", "full"), default="full")
    parser.add_argument("--max-world-size", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
