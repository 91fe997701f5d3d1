"""Sweeps the features of DeepSpeed, and compares each with plain PyTorch training.

The sweep has stages 0 to 3, accumulation over 1 and 2 micro-batches, clipping off and on, and 1, 2
and 4 ranks, in float32 and then bfloat16; then AutoTP, pipelines, MoE and Ulysses. A Point passes,
fails by a known bug of the installed DeepSpeed (`deepspeed_known.py`), or is counted as
unexplained. `--small` judges a few Points that characterise a release, for
`bench_deepspeed_releases.py`, which replaces the installed release: one dtype at a time, at most
two ranks, and the axes in which DeepSpeed had bugs (offload, accumulation by hand and in float32,
schedules, parameter groups, pipelines).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _measure import finish, machine, show
from deepspeed_known import catalogued_points, known_by

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models import deepspeed_gpt
from pytest_trainsafe.reference_models.deepspeed_bugs.programs import small as program
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.sweep.product import cells


def main() -> None:
    arguments = _arguments()
    facts = machine() | {"deepspeed": importlib.metadata.version("deepspeed")}
    rows: list[list[object]] = []
    outcomes: dict[str, int] = {"pass": 0, "known": 0, "unexplained": 0}
    seconds: list[float] = []
    for point, outcome, spent, summary in sweep(arguments):
        verdict = "known" if outcome not in ("pass", "unexplained") else outcome
        outcomes[verdict] += 1
        seconds.append(spent)
        worst = max((rung["worst"] for rung in summary["rungs"]), default=0.0)
        rows.append([str(point), outcome, f"{worst:.2f}", f"{spent:.1f}"])
        print(*rows[-1], file=sys.stderr, flush=True)
    show("DeepSpeed", ["Point", "outcome", "worst", "seconds"], rows)
    each = sum(seconds) / len(seconds)
    print(f"\n{outcomes}; {each:.1f} s a Point, {sum(seconds):.0f} s in all")
    finish("deepspeed", facts, {"outcomes": outcomes, "seconds": seconds, "rows": rows})
    sys.exit(bool(outcomes["unexplained"]))


def sweep(arguments: argparse.Namespace) -> Iterator[tuple[Point, str, float, PointSummary]]:
    """Yields each Point with "pass", "unexplained" or a bug's name, its seconds and its summary."""
    settings = Settings(device="cpu", localize=0.0)
    with tempfile.TemporaryDirectory(prefix="trainsafe-deepspeed-") as temporary:
        session = Session(settings, Path(temporary))
        try:
            for case in cases(arguments, settings):
                published: list[PointSummary] = []
                candidate = session.candidate(case)
                candidate.runs.publish = published.append
                began = time.perf_counter()
                try:
                    text = report_of(judge_case(candidate, session.reference(case)))
                except GroupFailure as failure:
                    text = str(failure)
                spent = time.perf_counter() - began
                session.discard(candidate)
                outcome = known_by(case, text) if text else "pass"
                if outcome == "unexplained":
                    print(text, file=sys.stderr, flush=True)
                empty: PointSummary = {
                    "point": str(case.point),
                    "verdict": "fail",
                    "rungs": [],
                    "seconds": {},
                }
                yield case.point, outcome, spent, published[0] if published else empty
        finally:
            session.close()


def cases(arguments: argparse.Namespace, settings: Settings) -> Iterator[Case]:
    """Yields the Cases of the sweep; Cases that share a reference follow each other."""
    if arguments.small:
        yield from _small(settings)
        return
    for accumulation in (1, 2):
        for ranks in (1, 2) if arguments.quick else (1, 2, 4):
            axes: dict[str, Any] = {
                "microbatches": accumulation * ranks,
                "clip": [True] if arguments.quick else [False, True],
                "zero": [0, 1, 2, 3],
                "dp": ranks,
                "dtype": ["bfloat16"],
            }
            yield from _cells(deepspeed_gpt.train, axes, settings)
    if arguments.quick:
        return
    both: dict[str, Any] = {"dp": [1, 2], "dtype": ["bfloat16"]}
    yield from _cells(deepspeed_gpt.train, {"tp": 2, "zero": [0, 1, 2, 3], **both}, settings)
    clip = {"clip": [False, True]}
    yield from _cells(deepspeed_gpt.pipeline, {"pp": 2, "zero": [0, 1], **clip, **both}, settings)
    expert = {"dp": 2, "ep": [1, 2], "zero": [0, 1, 2]}
    yield from _cells(deepspeed_gpt.moe, expert, settings)
    told = {"ulysses": ["mpu", "mesh"]}
    yield from _cells(deepspeed_gpt.ulysses, {"cp": 2, "zero": [0, 1, 2, 3], **told}, settings)
    documented = {"cp": 2, "zero": [0, 1, 2, 3], "ulysses_loss": "documented"}
    yield from _cells(deepspeed_gpt.ulysses, documented, settings)


def _small(settings: Settings) -> Iterator[Case]:
    """Yields the Cases that characterise a release.

    These are the first and the last stage in bfloat16, the Points of the catalogue's bugs that a
    supported release may have (in float32, unless a bug's Point is in bfloat16), and a pipeline
    without ZeRO and at stage 1.
    """
    float32, bfloat16 = (settings._replace(dtypes=(each,)) for each in ("float32", "bfloat16"))
    stages: dict[str, Any] = {"zero": [0, 3], "dp": 2, "dtype": "bfloat16"}
    yield from _cells(deepspeed_gpt.train, stages, bfloat16, layers=1, steps=2)
    for point in catalogued_points():
        of_bug = bfloat16 if point.get("dtype") == "bfloat16" else float32
        yield from _cells(program.train, point, of_bug)
    pipe: dict[str, Any] = {"pp": 2, "zero": [0, 1], "clip": False}
    yield from _cells(deepspeed_gpt.pipeline, pipe, float32, steps=2)


def _cells(
    program: Any, axes: dict[str, Any], settings: Settings, **args: object
) -> Iterator[Case]:
    declared = read_marker([program], {**axes, "args": args})
    for cell in cells(declared, settings, lambda *_: None):
        assert cell.invalid is None, cell.invalid
        yield cell.case


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 and 2 ranks, with clipping")
    parser.add_argument("--small", action="store_true", help="Points that characterise a release")
    return parser.parse_args()


if __name__ == "__main__":
    main()
