"""The summary of a fuzz test: one row for all of its examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.sweep.point_summary import PointSummary, plural

if TYPE_CHECKING:
    from pytest_trainsafe.fuzz.failures.ending import Ending
    from pytest_trainsafe.fuzz.runner import Runner


def fuzz_summary(
    name: str,
    program: str,
    runner: Runner,
    endings: Mapping[Point, Ending],
    failing: Point | None,
) -> PointSummary | None:
    """The summary of the examples of the test `name`; None if no Point was judged.

    If the test failed, it is that of the smallest failing Point, `failing`; None if that Point has
    no summary, as after an error.  Otherwise it stands for all examples: instead of a Point it has
    their number, and the largest error of all of them.  The seconds are the sums over all examples.
    """
    if failing is not None:
        found = [s for s in runner.summaries if s["point"] == str(failing)]
        own = next((s for s in reversed(found) if s["verdict"] == "fail"), None)
        if own is None:
            return None
        return {**own, **_totals(name, runner, endings)}
    reasons = dict.fromkeys(e.reason for e in endings.values() if e.end in _OPEN)
    summaries = [s for s in runner.summaries if s["verdict"] == "pass"] or runner.summaries
    if not summaries and not reasons:
        return None
    count = len(endings)
    made: PointSummary = {
        "program": program,
        **(max(summaries, key=_worst) if summaries else {}),  # type: ignore[typeddict-item]
        "point": plural(count, "example"),
        "axes": {"examples": count},
        "verdict": "inconclusive" if reasons else "pass",
        **_totals(name, runner, endings),
    }
    made.pop("artefacts", None)
    if reasons:
        made["reason"] = "; ".join(reasons)
    return made


#: The ends that are no verdict.
_OPEN = ("inconclusive", "refused")


def _worst(summary: PointSummary) -> float:
    return max((rung["worst"] for rung in summary.get("rungs", [])), default=0.0)


def _totals(name: str, runner: Runner, endings: Mapping[Point, Ending]) -> PointSummary:
    """The parts of a summary that are sums over all examples, and the notes."""
    seconds: dict[str, float] = {}
    references: dict[str, bool] = {}
    notes: dict[str, None] = {}
    for each in runner.summaries:
        for stage, spent in each.get("seconds", {}).items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
        for key, reused in each.get("references", {}).items():
            references.setdefault(key, reused)
        notes |= dict.fromkeys(each.get("notes", []))
    passed = sum(ending.end == "passes" for ending in endings.values())
    said = [*notes, f"{name}: {plural(len(endings), 'point')} run, {passed} passed"]
    said += [
        f"{name}: the relation {shown(relation)} held at {plural(count, 'point')}"
        for relation, count in runner.applied.items()
    ]
    skipped = dict.fromkeys(e.reason for e in endings.values() if e.end == "skipped")
    unavailable = [reason for reason in skipped if reason not in runner.unavailable]
    said += [f"{name}: points not run: {reason}" for reason in (*runner.unavailable, *unavailable)]
    return {"seconds": seconds, "references": references, "notes": said}  # type: ignore[typeddict-item]
