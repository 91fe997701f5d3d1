"""Measures the seconds to detect a bug, compared with training until the losses differ.

The paper's naive approach (TTrace, section 6.3) is to train the reference and the candidate until
their loss curves are 3 % apart. The bug is the first of Table 1, the mask of the
vocabulary-parallel embedding, in the reference GPT at tp=2 in bfloat16. Both ways are measured in
one run on the same small model. A clean candidate is trained as well: if its loss also differs by
3 %, the criterion detects nothing. If losses never differ that much, the table says so.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import programs
from _measure import finish, machine, median, show
from _rungs import case, session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import Task, TorchrunLauncher
from pytest_trainsafe.sweep.point_summary import PointSummary

BUG = "tp-embedding-mask"
DTYPE = "bfloat16"
POINT = Point.of(tp=2)

#: The relative difference of losses that counts, and the number of steps of the moving average.
APART = 0.03
SMOOTHED = 50


def main() -> None:
    asked = _arguments()
    facts = machine()
    steps, repetitions = (100, 1) if asked.quick else (asked.steps, 3)
    ours = [detect() for _ in range(repetitions)]
    curves = {
        "reference": train({}, "", steps),
        "candidate": train(dict(POINT), BUG, steps),
        "clean": train(dict(POINT), "", steps),
    }
    found = {
        "detect_s": median([one["detect"] for one in ours]),
        "localize_s": median([one["localize"] for one in ours]),
        "steps": steps,
        "last_loss": {name: smoothed(curve["losses"])[-1] for name, curve in curves.items()},
        "naive": [naive(curves, name, window) for window in (1, SMOOTHED) for name in NAMES],
    }
    show_figures(found)
    finish("detect", facts, {"repetitions": repetitions, **found})


NAMES = ("candidate", "clean")


def detect() -> dict[str, float]:
    """The seconds of a test from a cold start to its failure, and of the search for the fault."""
    settings = Settings(localize=600)
    point = POINT.replace(dtype=DTYPE)
    published: list[PointSummary] = []
    began = time.perf_counter()
    with session(settings) as opened:
        one = case("gpt", point, settings, {"steps": 1}, {"bug": BUG})
        candidate = opened.candidate(one)
        candidate.runs.publish = published.append
        report = report_of(judge_case(candidate, opened.reference(one)))
        seconds = time.perf_counter() - began
    if "the forward of embedding.word_embeddings" not in " ".join(report.split()):
        raise SystemExit(f"the bug was not found, so nothing was measured:\n{report}")
    localizing = published[0]["seconds"]["localize"]
    return {"detect": seconds - localizing, "localize": localizing}


def train(point: dict[str, Any], bug: str, steps: int) -> dict[str, list[float]]:
    """The losses and seconds of every step on the first rank."""
    arguments = {"steps": steps, "bug": bug}
    ranks = Point.of(point).world_size
    task = Task.of(programs.losses, point, DTYPE, arguments, world_size=ranks)
    with tempfile.TemporaryDirectory(prefix="trainsafe-detect-") as temporary:
        result = TorchrunLauncher().run(task, timeout=3600, workdir=Path(temporary))
        found: dict[str, list[float]] = result.values[0]
    return found


def naive(curves: dict[str, dict[str, list[float]]], name: str, window: int) -> dict[str, Any]:
    """The number of steps until a candidate's loss curve differs from the reference's by APART.

    `step` is None if it never does; `seconds` are then those of all steps. As in the paper,
    `seconds` are those of the reference; `both` adds those of the candidate.
    """
    own, reference = (smoothed(curves[which]["losses"], window) for which in (name, "reference"))
    apart = [abs(a - b) / b for a, b in zip(own, reference, strict=True)]
    step = next((i for i, far in enumerate(apart) if far >= APART), None)
    end = None if step is None else step + window
    seconds = [sum(curves[which]["seconds"][:end]) for which in ("reference", name)]
    return {
        "candidate": name,
        "window": window,
        "step": None if step is None else step + window,
        "seconds": seconds[0],
        "both": sum(seconds),
        "most_apart": max(apart),
    }


def smoothed(losses: list[float], window: int = SMOOTHED) -> list[float]:
    """The moving average over `window` steps."""
    return [sum(losses[i : i + window]) / window for i in range(max(len(losses) - window + 1, 0))]


def show_figures(found: dict[str, Any]) -> None:
    rows = []
    for one in found["naive"]:
        what = "with the bug" if one["candidate"] == "candidate" else "without a bug"
        curve = "the loss" if one["window"] == 1 else f"its mean over {one['window']} steps"
        after = "never" if one["step"] is None else one["step"]
        rows.append(
            [
                f"{what}, {curve} {APART:.0%} apart",
                after,
                f"{one['seconds']:.1f}",
                f"{one['both']:.1f}",
                f"{100 * one['most_apart']:.1f}",
            ]
        )
    columns = ["training, at most " + str(found["steps"]) + " steps"]
    columns += ["after steps", "reference s", "both s", "most apart, %"]
    show(f"The naive approach: {BUG} at {POINT}, {DTYPE}", columns, rows)
    print(f"\n  A test detects it in {found['detect_s']:.1f} s from a cold start, including the")
    print(f"  reference's Run, and localises it in {found['localize_s']:.1f} s more.")
    losses = ", ".join(f"{name} {value:.3f}" for name, value in found["last_loss"].items())
    print(f"  Losses at the end, means over {SMOOTHED} steps: {losses}.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 steps, one repetition")
    parser.add_argument("--steps", type=int, default=2000, help="Train at most so many steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
