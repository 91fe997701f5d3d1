"""Measures the time of a Point, of the estimate of rounding and of a localisation, by depth.

The reference GPT with 2, 8 and 32 layers is judged at tp=2 with one optimizer step, in float64 and
float32. Each Run ends before the next one starts, so that the times can be added; in a test, Runs
overlap.

    reference   the trusted Run in float32
    estimate    the Runs for the allowance: the reference in float64, and both dtypes under noise
    Point       a clean candidate in both dtypes, from launch to verdict
    compare     the comparison, which is a part of Point
    localise    the search for the code at fault in a failed Point, with the rewritten reference
    again       the search in a second failed Point with the same reference
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from _measure import finish, machine, median, quick, show
from _rungs import case, session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.point_summary import PointSummary

POINT = Point.of(tp=2)

#: Bugs that show in float64, for the first and the second localisation.
BUGS = ("tp-embedding-mask", "tp-overlap-dgrad")

COSTS = ("reference", "estimate", "point", "compare", "localize", "again")

Figures = dict[str, float]


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    # The number of measurements of each depth: one of the deepest, which takes two minutes.
    depths = {1: 1, 2: 1} if small else {2: 3, 8: 3, 32: 1}
    measured = {layers: [one_session(layers) for _ in range(n)] for layers, n in depths.items()}
    costs: dict[int, Figures] = {
        layers: {cost: median([run[cost] for run in runs]) for cost in (*COSTS, "tensors")}
        for layers, runs in measured.items()
    }
    show_costs(costs)
    figures = [{"layers": layers, **found} for layers, found in costs.items()]
    repetitions = list(depths.values())
    finish("cost", facts, {"repetitions": repetitions, "point": str(POINT), "depths": figures})


def one_session(layers: int) -> Figures:
    """Every cost at one depth, in a new Session."""
    with session(Settings(localize=3600)) as opened:
        warm_up(opened)
        arguments: dict[str, Any] = {"layers": layers, "steps": 1, "tp_overlap": True}
        clean = case("gpt", POINT, opened.settings, arguments)
        reference = opened.reference(clean)
        found = {
            "reference": seconds(lambda: reference.at("float32")),
            "estimate": sum(
                seconds(run)
                for run in (
                    lambda: reference.at("float64"),
                    lambda: reference.perturbed("float64"),
                    lambda: reference.perturbed("float32"),
                )
            ),
        }
        own = judge(opened, arguments, "")
        found |= {
            "point": own["wall"],
            "compare": own["compare"],
            "tensors": own["tensors"],
        }
        for cost, bug in zip(("localize", "again"), BUGS, strict=True):
            found[cost] = judge(opened, arguments, bug)["localize"]
    return found


def warm_up(opened: Session) -> None:
    """Make a first Run, which starts the process from which all ranks are forked."""
    one = case("gpt", POINT, opened.settings, {"layers": 1, "steps": 1})
    opened.candidate(one).at("float64")


def judge(opened: Session, arguments: dict[str, Any], bug: str) -> dict[str, float]:
    """The figures of a Point up to its verdict; SystemExit unless it fails if and only if `bug`."""
    one = case("gpt", POINT, opened.settings, arguments, {"bug": bug})
    published: list[PointSummary] = []
    candidate = opened.candidate(one)
    candidate.runs.publish = published.append
    began = time.perf_counter()
    report = report_of(judge_case(candidate, opened.reference(one)))
    wall = time.perf_counter() - began
    opened.discard(candidate)
    summary = published[0]
    if bool(report) != bool(bug) or bool(bug) != ("faults" in summary):
        raise SystemExit(f"not the verdict that was expected, so nothing was measured:\n{report}")
    tensors = sum(rung["tensors"] for rung in summary["rungs"])
    return {"wall": wall, "tensors": tensors, "localize": 0.0, **summary["seconds"]}


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def show_costs(costs: dict[int, Figures]) -> None:
    rows: list[list[object]] = [
        [f"{layers} layers", f"{found['tensors']:.0f}", *(f"{found[c]:.2f}" for c in COSTS)]
        for layers, found in costs.items()
    ]
    *_, before, last = costs
    more = [(costs[last][c] - costs[before][c]) / (last - before) for c in COSTS]
    rows.append([f"a layer more, {before} to {last}", "", *(f"{1000 * s:.0f} ms" for s in more)])
    first = next(iter(costs))
    powers = [math.log(costs[last][c] / costs[first][c]) / math.log(last / first) for c in COSTS]
    rows.append([f"power of depth, {first} to {last}", "", *(f"{p:.2f}" for p in powers)])
    named = ("reference", "estimate", "Point", "compare", "localise", "again")
    columns = ["", "tensors", *(f"{name} s" for name in named)]
    show(f"The reference GPT at {POINT}, medians", columns, rows)
    print("  A power of 1 means that the cost is proportional to depth; constant costs lower it.")


if __name__ == "__main__":
    main()
