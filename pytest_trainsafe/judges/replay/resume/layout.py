"""Judges a training that is resumed at another Point: up to rounding, not bit by bit."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.compare.judgement import LadderJudgement
from pytest_trainsafe.judges.compare.ladder.pair import judge_pair
from pytest_trainsafe.judges.replay.resume.continued import step_numbers
from pytest_trainsafe.judges.replay.resume.difference import Code, Difference
from pytest_trainsafe.judges.replay.resume.loaded import LoadedState, compare_loaded
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.trace.run_spec import RunSpec


def judge_layout(
    traces: Traces, resumed: RunSpec, point: Point, last: int, rounding: str
) -> tuple[list[Finding], LadderJudgement | None]:
    """Compares the training resumed at `point` with the Run `resumed`, which keeps its Point.

    Returns the findings and the comparison of the results. There are no findings if the comparison
    passes. If it fails because `point` loads other state, the findings name this state, and the
    comparison is None: its results would only describe the consequences. The effect of rounding is
    measured by repeating the Run `resumed` with noise of the size of rounding errors in the dtype
    `rounding`. `last` is the number of steps of the whole training. Raises ArgumentError if the
    program does not take the same number of steps at `point`.
    """
    assert resumed.resume is not None
    noisy = structs.replace(resumed, perturbation=rung_named(rounding).epsilon)
    elsewhere = structs.replace(resumed, axes=point.values, mesh=point.mesh.declared)
    for each in (noisy, elsewhere):
        traces.runs.start(each)
    moved = traces.runs.get(elsewhere).trace
    first = resumed.resume.step
    taken = len(step_numbers(moved))
    if taken != last - first:
        raise ArgumentError(
            f"{moved.manifest.program} takes {taken} steps after the checkpoint if it is resumed "
            f"with {point}, and {last - first} with {resumed.point}; the number of steps must not "
            "depend on the sizes of the axes"
        )
    same = traces.runs.get(resumed).trace
    measure = traces.runs.get(noisy).trace
    accept = traces.case.settings.accept
    compared = judge_pair(moved, same, measure, None, (), tuple(accept))
    if compared.verdict != "fail":
        return list(compared.findings), compared
    loaded = compare_loaded(same, moved, first)
    at, dtype = f"resumed at {moved.point}", same.manifest.dtype
    failing = [each for each in compared.findings if each.verdict == "fail"]
    place = next((each.where for each in failing if each.where is not None), None)
    if loaded.differences:
        begins = "" if place is None else f"{at}, {place}"
        return [
            replace(each, message=f"{at}, {each.message}").finding(dtype, begins)
            for each in loaded.differences
        ], None
    code: Code = "data_order" if place is not None and place.kind == "input" else "unknown"
    message = (
        f"{at}, {failing[0].message}"
        if place is None
        else f"{at}, the training differs first in {place} from the training resumed at "
        f"{same.point}"
    )
    cause = (
        "the resumed ranks read different data than the uninterrupted ones"
        if code == "data_order"
        else _cause_of_unknown(loaded)
    )
    lead = Difference(code, message, cause, where=place)
    return [lead.finding(dtype), *compared.findings], compared


def _cause_of_unknown(loaded: LoadedState) -> str:
    """What is known of the cause if no part of the loaded state was found to differ."""
    if loaded.unknown or not loaded.equal:
        count = len(loaded.unknown)
        such = f": {count} tensors, such as {loaded.unknown[0]}" if count else ""
        return (
            "not known: no loaded state was found to differ, but not all weights and optimizer "
            f"states could be compared at this Point{such}"
        )
    return (
        "the loaded weights and optimizer state agree: the program computes different results at "
        "this Point, or state that is not recorded is not restored there"
    )
