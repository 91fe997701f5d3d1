"""Judges a training that is resumed at another Point: up to rounding, not bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec import structs

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.precision import precision
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.errors import ArgumentError, TraceError
from pytest_trainsafe.judge.judgement import LadderJudgement
from pytest_trainsafe.judge.ladder import judge_pair
from pytest_trainsafe.judge.replay.resume.continued import step_numbers
from pytest_trainsafe.judge.replay.resume.difference import Code, Difference
from pytest_trainsafe.judge.replay.resume.state import entry_differences, part_of
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: Parts of the state that are the same on every rank, whatever the layout.
_GLOBAL: frozenset[Code] = frozenset({"lr_schedule", "scaler"})


def judge_layout(
    traces: Traces, resumed: RunSpec, point: Point, last: int, rounding: str
) -> tuple[list[Finding], LadderJudgement]:
    """Compares the training resumed at `point` with the Run `resumed`, which keeps its Point.

    Returns the findings and the comparison itself. There are no findings if the comparison passes;
    otherwise the first one names the part of the state that was not restored, if it is known. The
    effect of rounding is measured by repeating the Run `resumed` with noise of the size of rounding
    errors in the dtype `rounding`. `last` is the number of steps of the whole training. Raises
    ArgumentError if the program does not take the same number of steps at `point`.
    """
    assert resumed.resume is not None
    noisy = structs.replace(resumed, perturbation=precision(rounding).epsilon)
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
    if compared.verdict == "pass":
        return [], compared
    return [_lead(compared.findings, same, moved, first), *compared.findings], compared


def _lead(findings: Sequence[Finding], same: Trace, moved: Trace, first: int) -> Finding:
    """The finding that names the part of the state that was not restored at the other Point.

    It is inconclusive if the comparison has no failing finding. `same` and `moved` are the traces
    of the training resumed at its own and at the other Point, and `first` is their first step.
    """
    failing = [each for each in findings if each.verdict == "fail"]
    place = next((each.where for each in failing if each.where is not None), None)
    at = f"resumed at {moved.point}"
    dtype = same.manifest.dtype
    if not failing:
        difference = Difference(
            "unknown",
            f"{at}, the comparison is inconclusive: {findings[0].message}",
            "",
            verdict="inconclusive",
        )
        return difference.finding(dtype)
    for each in entry_differences(same, moved, first):
        if each.code in _GLOBAL:
            return each.finding(dtype, f"{at}, {place}")
    loaded = _loaded_otherwise(same, moved, first - 1)
    code: Code = "unknown"
    if loaded is not None:
        place, code = loaded, part_of(loaded)
    elif place is not None and place.kind == "input":
        code = "data_order"
    message = (
        f"{at}, the training differs first in {place} from the training resumed at {same.point}"
    )
    cause = (
        "the checkpoint is sharded differently there, and is gathered or sharded wrongly when "
        "loaded"
        if code in ("model", "moment", "step_counter")
        else "the resumed ranks read different data than the uninterrupted ones"
        if code == "data_order"
        else "the loaded state agrees; the program computes different results at this Point"
    )
    return Difference(code, message, cause, where=place).finding(dtype)


def _loaded_otherwise(same: Trace, moved: Trace, step: int) -> TensorId | None:
    """The first weight or optimizer state that the two Runs loaded with different values.

    Both load the same saved values, so not even rounding may change them. None if all values
    are equal, or if their values were not kept.
    """
    for id in same.ids():
        if id.step != step or id.kind not in ("param", "master_param", "optimizer_state"):
            continue
        if not moved.holders(id):
            continue
        try:
            wanted, found = (logical_tensor(trace, id).tensor for trace in (same, moved))
        except (TraceError, LayoutError):  # a sketch, or parts that the comparison names
            continue
        if wanted is None or found is None:
            continue
        if wanted.shape != found.shape or not torch.equal(wanted, found):
            return id
    return None
