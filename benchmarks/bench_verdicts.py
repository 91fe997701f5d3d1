"""Counts right and wrong verdicts of measured tolerances and of fixed ones (`torch.allclose`).

These are TTrace's Table 3 and Figure 9, with the reference models and the bugs that can be planted
in them. Each criterion judges the same pairs of traces, candidate and reference, in each dtype. A
false positive is a clean Point at which any tensor fails. A miss is a bug, at a Point that triggers
it, whose first wrong tensor (named by the catalogue) passes. Failures of other tensors do not count
as detection, because clean tensors may fail the same criterion. A tensor that is absent, or whose
parts do not fit together, fails every criterion.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from _measure import finish, machine, options
from _points import CLEAN, triggering
from _rungs import case, rungs, session, values, whole
from _verdict_tables import CRITERIA, draw_margins, show_verdicts

from pytest_trainsafe.align.logical import is_cut_over_stages
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.errors import Wide, norm
from pytest_trainsafe.judges.compare.tensors.tensor import judge_allowed
from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import ReferenceTolerances
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models.bugs import BUGS, Bug
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case

#: The kinds that show an update: updates are not recorded but derived from parameters.
UPDATED = frozenset({"param", "master_param", "update"})

#: Kinds that exist once for each micro-batch.
PER_MICROBATCH = frozenset({"activation", "activation_grad", "param_grad", "loss"})


def main() -> None:
    asked = options(__doc__)
    found = asked.figures
    if found is None:
        facts = machine()
        settings = Settings(timeout=1800)
        with session(settings) as opened:
            pairs = [*clean_pairs(opened, asked.quick), *bug_pairs(opened, asked.quick)]
        found = {"machine": facts, "pairs": pairs}
    show_verdicts(found["pairs"])
    if asked.plots:
        draw_margins(found["pairs"], asked.plots)
    finish("verdicts", found["machine"], {"pairs": found["pairs"]})


def clean_pairs(opened: Session, quick: bool) -> Iterator[dict[str, Any]]:
    """Yields the verdicts of every criterion on programs without a bug."""
    for clean in CLEAN[:2] if quick else CLEAN:
        for point in clean.points[:2] if quick else clean.points:
            one = case(clean.program, point, opened.settings, clean.arguments)
            for dtype, rung in judged_rungs(opened, one, clean.name):
                pair = named_pair(clean.name, point, "", dtype, rung)
                comparison = compare(rung)
                ours = {
                    "failed": sum(comparison.wrong.values()),
                    "tensors": sum(comparison.compared.values()),
                    "worst": comparison.worst,
                    "worst_at": str(comparison.worst_id),
                }
                yield {**pair, "ours": ours, "room": room(rung), "fixed": fixed(rung, None)}


def bug_pairs(opened: Session, quick: bool) -> Iterator[dict[str, Any]]:
    """Yields the verdicts of every criterion on the bugs, each at its smallest triggering Point."""
    for bug in BUGS[:2] if quick else BUGS:
        point = triggering(bug)
        one = case(bug.program, point, opened.settings, bug.arguments, {"bug": bug.name})
        for dtype, rung in judged_rungs(opened, one, bug.name):
            pair = named_pair(bug.program, point, bug.name, dtype, rung)
            comparison = compare(rung)
            named = [finding for finding in comparison.findings if is_named(finding, bug)]
            ours = {
                "failed": sum(comparison.wrong.values()),
                "missed": not named,
                "margin": margin(rung, bug, comparison, named),
            }
            yield {**pair, "ours": ours, "fixed": fixed(rung, first_wrong(bug))}


def named_pair(
    program: str, point: Point, bug: str, dtype: str, rung: RungTraces
) -> dict[str, Any]:
    """A description of a pair; `rounding` is the dtype whose rounding is allowed, such as FP8."""
    run = {"program": program, "point": str(point), "bug": bug, "dtype": dtype}
    return {**run, "rounding": rung.dtype}


def judged_rungs(opened: Session, one: Case, what: str) -> Iterator[tuple[str, RungTraces]]:
    """Yields the rungs of a Case; if ranks do not finish, prints that and skips the rest."""
    print(f"{what}, {one.point}", file=sys.stderr, flush=True)
    try:
        yield from rungs(opened, one)
    except GroupFailure as failure:
        print(f"LEFT OUT: {what}, {one.point}: {failure}", file=sys.stderr, flush=True)


def first_wrong(bug: Bug) -> TensorId:
    """The recorded tensor in which a bug shows first, as the catalogue names it."""
    kind = "param" if bug.kind == "update" else bug.kind
    microbatch = 0 if kind in PER_MICROBATCH else None
    return TensorId(bug.step, microbatch, kind, bug.module, bug.tensor)


def is_named(finding: Finding, bug: Bug) -> bool:
    """Whether a finding says that the bug's first wrong tensor is wrong."""
    where, named = finding.where, first_wrong(bug)
    if finding.verdict != "fail" or where is None:
        return False
    same = {named.kind} if named.kind not in UPDATED else UPDATED
    return (where.step, where.path) == (named.step, named.path) and where.kind in same


def margin(
    rung: RungTraces, bug: Bug, comparison: Comparison, named: list[Finding]
) -> float | None:
    """The ratio of the first wrong tensor's error to its allowance; None if nothing is allowed.

    Nothing is allowed if the tensor is absent, or if replicas differ.
    """
    if named:
        measured = [(f.error, f.allowed) for f in named if f.error is not None and f.allowed]
        return max((error / allowed for error, allowed in measured), default=None)
    id = first_wrong(bug)
    return comparison.worst if id.kind in UPDATED else ratio(rung, ReferenceTolerances(rung), id)


def ratio(rung: RungTraces, tolerances: ReferenceTolerances, id: TensorId) -> float:
    """The ratio of a tensor's error to its allowance, in the worst of the checks."""
    reference = whole(rung.reference, id)
    candidate = whole(rung.candidate, id, reference.shape)
    allowed = tolerances.tolerance(id, 1.0).allowed
    return judge_allowed(candidate, reference, allowed, norm(reference), rung.dtype).ratio


def room(rung: RungTraces) -> dict[str, float]:
    """The worst ratio of each kind of tensor, except parameters, which updates judge."""
    tolerances, found = ReferenceTolerances(rung), dict[str, float]()
    for id in rung.reference.ids():
        if id.kind in UPDATED or not rung.candidate.holders(id) or apart(rung, id):
            continue
        moment = f", {id.name.rpartition('.')[2]}" if id.kind == "optimizer_state" else ""
        kind = f"{id.kind}{moment}"
        found[kind] = max(found.get(kind, 0.0), ratio(rung, tolerances, id))
    return found


def fixed(rung: RungTraces, named: TensorId | None) -> dict[str, Any]:
    """For each pair of fixed tolerances, the number of tensors that fail `torch.allclose`.

    `missed` is whether the tensor `named` passes, for each pair.
    """
    failed = dict.fromkeys(CRITERIA, 0)
    missed = dict.fromkeys(CRITERIA, True)
    tensors = 0
    for id in rung.reference.ids():
        if apart(rung, id):
            continue
        reference, candidate = whole(rung.reference, id), None
        if rung.candidate.holders(id):
            candidate = values(rung.candidate, id, reference.shape)
        elif id != named:
            continue  # a candidate need not record everything, except for `named`
        tensors += 1
        for name, (atol, rtol) in CRITERIA.items():
            if not close(candidate, reference, atol, rtol):
                failed[name] += 1
                missed[name] &= id != named
    return {"tensors": tensors, "failed": failed, **({"missed": missed} if named else {})}


def apart(rung: RungTraces, id: TensorId) -> bool:
    """Whether no tolerance applies to a tensor.

    These are decisions of routers, and outputs of modules that several pipeline stages share,
    which the judge does not compare either.
    """
    traces = (rung.reference, rung.candidate)
    return id.kind == "decision" or any(is_cut_over_stages(trace, id) for trace in traces)


def close(candidate: Wide | None, reference: Wide, atol: float, rtol: float) -> bool:
    """Whether two logical tensors are close by `torch.allclose`; False if the candidate is None."""
    if candidate is None or candidate.shape != reference.shape:
        return False
    pair = (torch.from_numpy(array) for array in (candidate, reference))
    left, right = (t if t.is_floating_point() or t.is_complex() else t.double() for t in pair)
    return torch.allclose(left, right, rtol=rtol, atol=atol)


if __name__ == "__main__":
    main()
