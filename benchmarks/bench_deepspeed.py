"""Sweeps DeepSpeed over its ways to train, each judged by plain PyTorch training.

Stages 0 to 3, accumulation over 1 and 2 micro-batches, clipping off and on, worlds of 1, 2 and 4
ranks, in float32 and then bfloat16; then AutoTP, pipelines, MoE and Ulysses.  A Point passes, or
fails as a known bug of the installed DeepSpeed does (`KNOWN`), or is counted as unexplained.
`--small` takes stages 0 to 3 in worlds of 1 and 2 alone, each dtype by itself: enough to know a
release by, which `bench_deepspeed_releases.py` puts in the place of the installed one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _measure import finish, machine, show
from packaging.version import Version

from pytest_trainsafe.ladder import climb
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models import deepspeed_gpt
from pytest_trainsafe.report.summary import PointSummary
from pytest_trainsafe.session import Session
from pytest_trainsafe.settings import Settings
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.point import Point
from pytest_trainsafe.sweep.product import cells


@dataclass(frozen=True, slots=True)
class Known:
    """A bug: the first and the last release it was seen in, its Points, words of its reports."""

    name: str
    first: str
    last: str
    point: dict[str, object]
    words: tuple[str, ...]

    def explains(self, point: Point, report: str) -> bool:
        """Whether a Point fails by this bug."""
        installed = Version(importlib.metadata.version("deepspeed"))
        here = Version(self.first) <= installed <= Version(self.last)
        there = all(point.get(axis, 1) == value for axis, value in self.point.items())
        return here and there and all(word in report for word in self.words)


KNOWN = (
    Known(
        "stage 0 in bfloat16 makes its optimizer's states by a step, which moves the weights",
        "0.18.2",
        "0.19.8",
        {"zero": 0, "dtype": "bfloat16"},
        ("master_param · before the first step",),
    ),
    Known(
        "a pipeline in float32 clips the gradients of all stages by the norm of the first stage's",
        "0.19.8",
        "0.19.8",
        {"zero": 0, "pp": 2, "clip": True},
        ("exp_avg · optimizer_state · step 0",),
    ),
    Known(
        "stage 0 in float32 clips by the norm of the experts that a rank has, not of all",
        "0.19.8",
        "0.19.8",
        {"zero": 0, "ep": 2},
        ("exp_avg · optimizer_state · step 0",),
    ),
    Known(
        "under Ulysses stage 3 averages gradients over the sequence's ranks, the others add up",
        "0.19.8",
        "0.19.8",
        {"cp": 2, "zero": 3},
        ("main_grad · step 0", "0.5 times the reference"),
    ),
    Known(
        "told of Ulysses by a device mesh, stages 0 to 2 reduce no gradient over its ranks",
        "0.19.8",
        "0.19.8",
        {"cp": 2, "ulysses": "mesh"},
        ("main_grad · step 0", "over cp"),
    ),
    Known(
        "ds-7718: stage 2 keeps only the last micro-batch of a step",
        "0.17.6",
        "0.18.2",
        {"zero": 2},
        ("main_grad · step 0", "of 4 are not in it"),
    ),
)


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
    """Each Point with "pass", "unexplained" or a bug's name, and the seconds that it took."""
    settings = Settings(device="cpu", localize=0.0)
    with tempfile.TemporaryDirectory(prefix="trainsafe-deepspeed-") as temporary:
        session = Session(settings, Path(temporary))
        try:
            for case in cases(arguments, settings):
                published: list[PointSummary] = []
                candidate = session.candidate(case)
                candidate.publish = published.append
                began = time.perf_counter()
                try:
                    text = climb(candidate, session.reference(case), [], [])
                except GroupFailure as failure:
                    text = str(failure)
                spent = time.perf_counter() - began
                session.discard(candidate)
                outcome = _outcome(case.point, text)
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


def _outcome(point: Point, report: str) -> str:
    if not report:
        return "pass"
    found = [bug.name for bug in KNOWN if bug.explains(point, report)]
    return found[0] if found else "unexplained"


def cases(arguments: argparse.Namespace, settings: Settings) -> Iterator[Case]:
    """The Cases of the sweep: those that share a reference follow each other."""
    if arguments.small:
        for dtype in ("float32", "bfloat16"):
            stages: dict[str, Any] = {"zero": [0, 1, 2, 3], "dp": [1, 2], "dtype": [dtype]}
            yield from _cells(deepspeed_gpt.train, stages, replace(settings, dtypes=(dtype,)))
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


def _cells(program: Any, axes: dict[str, Any], settings: Settings) -> Iterator[Case]:
    for cell in cells(read_marker([program], axes), settings, lambda *_: None):
        assert cell.invalid is None, cell.invalid
        yield cell.case


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Worlds of 1 and 2, with clipping")
    parser.add_argument("--small", action="store_true", help="16 Points, to know a release by")
    return parser.parse_args()


if __name__ == "__main__":
    main()
