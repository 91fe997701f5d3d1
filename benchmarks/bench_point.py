"""Measures what one Point costs: seconds by stage, memory, disk, and the overhead of recording.

The reference GPT with 2 and 8 layers is judged at tp and cp of 1 and 2, as in a test: in float64,
then in float32. The reference runs once for all Points and has a separate row.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import programs
from _measure import (
    finish,
    folder_size,
    machine,
    median,
    peak_memory,
    quick,
    reset_peak_memory,
    show,
)

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import Task, TorchrunLauncher
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.sweep.program import resolve

STAGES = ("launch", "train", "compare", "wall")
Figures = dict[str, float]


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    points = [Point.of(tp=tp, cp=cp) for tp in (1, 2) for cp in (1, 2)]
    if small:
        points = [Point.of(tp=1, cp=1), Point.of(tp=2, cp=2)]
    depths, repetitions = ((2,), 1) if small else ((2, 8), 3)
    measured: dict[tuple[int, str], list[Figures]] = defaultdict(list)
    for layers in depths:
        for _ in range(repetitions):
            for name, figures in one_session(layers, points).items():
                measured[layers, name].append(figures)
    costs = [
        {"layers": layers, "point": name, **medians(runs)}
        for (layers, name), runs in measured.items()
    ]
    show_costs(costs, repetitions)
    overheads = [overhead(sizes, small) for sizes in model_sizes(depths)]
    show_overheads(overheads)
    finish("point", facts, {"repetitions": repetitions, "points": costs, "recording": overheads})


def one_session(layers: int, points: list[Point]) -> dict[str, Figures]:
    """Judge the Points in a new Session, which also runs the reference; figures by name."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="trainsafe-point-") as temporary:
        session = Session(Settings(), Path(temporary, "traces"))
        try:
            report = Path(temporary, "memory")
            report.mkdir()
            cases = [case(layers, point, report) for point in points]
            found["reference"] = reference_figures(session, cases[0])
            for one in cases:
                found[str(one.point)] = point_figures(session, one)
        finally:
            session.close()
    return found


def case(layers: int, point: Point, report: Path) -> Case:
    arguments = {"layers": layers, "report": str(report)}
    return Case(point, resolve(programs.train), Settings(), arguments, arguments)


def reference_figures(session: Session, one: Case) -> Figures:
    """The figures of the reference's Runs, which all Points share: each rung, and under noise."""
    began = time.perf_counter()
    reference = session.reference(one)
    for dtype in one.rungs:
        reference.prefetch(dtype)
    traces = [reference.at(dtype) for dtype in one.rungs]
    seconds = dict(reference.seconds)  # of the rungs; what follows would count some again
    traces += [reference.perturbed(dtype) for dtype in one.rungs]
    return {
        **seconds,
        "wall": time.perf_counter() - began,
        "rank_mib": rank_memory(one),
        "trace_bytes": folder_size(*(trace.path for trace in traces)),
    }


def point_figures(session: Session, one: Case) -> Figures:
    """The figures of one Point, from its launch to its verdict, which must be a pass."""
    published: list[PointSummary] = []
    reference, candidate = session.reference(one), session.candidate(one)
    candidate.runs.publish = published.append
    held = reset_peak_memory()
    began = time.perf_counter()
    failure = report_of(judge_case(candidate, reference))
    wall = time.perf_counter() - began
    peak = peak_memory()
    if failure or published[0]["verdict"] != "pass":
        raise SystemExit(f"a clean program did not pass, so nothing was measured:\n{failure}")
    figures = {
        **published[0]["seconds"],
        "wall": wall,
        "tensors": sum(rung["tensors"] for rung in published[0]["rungs"]),
        "parent_mib": peak,
        "parent_held_mib": held,
        "rank_mib": rank_memory(one),
        "trace_bytes": folder_size(*(candidate.at(dtype).path for dtype in one.rungs)),
    }
    session.discard(candidate)
    return figures


def rank_memory(one: Case) -> float:
    """The peak memory of any rank in the Runs since the last call, in MiB."""
    reports = list(Path(str(one.arguments["report"])).glob("*.json"))
    most = max(json.loads(file.read_text())["mib"] for file in reports)
    for file in reports:
        file.unlink()
    return float(most)


def model_sizes(depths: tuple[int, ...]) -> list[dict[str, int]]:
    """The default sizes of the reference GPT, and sizes closer to those of real models."""
    small = [{"layers": layers, "hidden": 64, "seq_len": 32} for layers in depths]
    return [*small, {"layers": depths[0], "hidden": 512, "seq_len": 128}]


def overhead(sizes: dict[str, int], small: bool) -> dict[str, Any]:
    """The time of a step on one device with and without recording, and their ratio."""
    repetitions, steps = (2, 3) if small else (5, 5)
    with tempfile.TemporaryDirectory(prefix="trainsafe-steps-") as temporary:
        task = Task.of(programs.step_seconds, temporary, repetitions, steps, sizes, world_size=1)
        result = TorchrunLauncher().run(task, timeout=600, workdir=Path(temporary))
        found = result.values[0]
    recorded, bare = (median(found[what]["seconds"]) for what in ("full", "bare"))
    return {
        **sizes,
        "steps": len(found["bare"]["seconds"]),
        "recorded_ms": 1000 * recorded,
        "bare_ms": 1000 * bare,
        "ratio": recorded / bare,
    }


def medians(runs: list[Figures]) -> Figures:
    return {key: median([run[key] for run in runs]) for key in runs[0]}


def show_costs(costs: list[dict[str, Any]], repetitions: int) -> None:
    rows = [
        [
            f"{cost['layers']} layers, {cost['point']}",
            *(f"{cost[stage]:.2f}" if stage in cost else "" for stage in STAGES),
            *(f"{cost[key]:.0f}" if key in cost else "" for key in ("rank_mib", "parent_mib")),
            f"{cost['trace_bytes'] / 2**20:.1f}",
        ]
        for cost in costs
    ]
    columns = ["", *(f"{stage} s" for stage in STAGES), "rank MiB", "parent MiB", "trace MiB"]
    show(f"One Point, float64 and float32, medians of {repetitions}", columns, rows)
    print("  launch, train: sums over the rungs, which overlap; wall: the time that a test takes.")
    print("  The reference's wall, memory and disk include its Runs under noise.")


def show_overheads(overheads: list[dict[str, Any]]) -> None:
    rows = [
        [
            f"{one['layers']} layers, hidden {one['hidden']}, {one['seq_len']} tokens",
            *(f"{one[key]:.1f}" for key in ("bare_ms", "recorded_ms", "ratio")),
        ]
        for one in overheads
    ]
    show("A step on one device, float32", ["", "bare ms", "recorded ms", "ratio"], rows)


if __name__ == "__main__":
    main()
