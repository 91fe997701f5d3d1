"""Every compared tensor of one dtype with its error, and the dtypes that were judged, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.judgement import RungJudgement, lead_of
from pytest_trainsafe.judges.compare.results import MAX_EXPLAINED
from pytest_trainsafe.report.panels import Cell, State, Table, number
from pytest_trainsafe.report.sections import label

#: The most tensors that the table lists: the wrong ones, then those with the largest errors.
MOST_TENSORS = 1_200


class One(NamedTuple):
    """One compared tensor: its state, and its error, what is allowed, and their ratio, if known."""

    id: TensorId
    state: State
    error: float | None
    allowed: float | None
    ratio: float | None
    said: str
    missing: bool = False

    @property
    def shown(self) -> float | str | None:
        """The ratio as a panel has it; a tensor that no rank recorded is "missing"."""
        return "missing" if self.missing else number(self.ratio)

    @property
    def anchor(self) -> str:
        """The name by which links find the tensor."""
        return label(self.id)


@dataclass(frozen=True, slots=True)
class Compared:
    """The compared tensors of one dtype, in dataflow order; `lead` is the first wrong one."""

    rung: RungJudgement
    tensors: tuple[One, ...]
    lead: TensorId | None

    @classmethod
    def of(cls, rung: RungJudgement) -> Compared:
        """The tensors of a rung, those with a failing finding and those that agree."""
        comparison = rung.comparison
        wrong: dict[TensorId, Finding] = {}
        for finding in comparison.findings:
            if finding.verdict == "fail" and finding.where is not None:
                wrong.setdefault(_judged(finding.where), finding)
        failing = [f for f in comparison.findings if f.verdict == "fail"]
        lead = lead_of(failing).where if failing else None
        lead = _judged(lead) if lead is not None else None
        doubted = {f.where for f in (*rung.doubts, *comparison.findings) if f.verdict != "fail"}
        measured = dict(comparison.measured or {})
        for id in wrong:
            measured.setdefault(id, None)
        found = []
        for id, figures in measured.items():
            due = wrong.get(id)
            state: State = "pale" if wrong else ""
            if id in doubted:
                state = "doubt"
            if due is not None:
                state = "first" if id == lead else "wrong"
            missing = due is not None and due.check == "missing"
            error, allowed, ratio = figures or (None, None, None)
            if due is not None and due.error is not None:
                error, allowed = due.error, due.allowed
            if due is not None and not (ratio or 0.0) > 1:
                ratio = math.inf
                if due.check == "replicas":  # measured is the first replica, which agrees
                    error = allowed = None
            ratio = 0.0 if ratio is None else ratio  # compared, and equal
            said = _said(due, id in comparison.unsought)
            if due is not None and ratio == math.inf and not missing and due.check != "replicas":
                said = label(f"{said}; ∞: {_unbounded(due, allowed)}")
            found.append(One(id, state, error, allowed, ratio, said, missing))
        return cls(rung, tuple(found), lead)


def _judged(id: TensorId) -> TensorId:
    """The id under which a tensor is judged: for a parameter after a step, that of its update."""
    if id.kind in ("param", "master_param") and id.step != INITIAL:
        return msgspec.structs.replace(id, kind="update")
    return id


def _said(finding: Finding | None, unsought: bool) -> str:
    """How a tensor is wrong, or whether a pattern was looked for; "" if it agrees."""
    if finding is None:
        return ""
    if finding.pattern is not None:
        return label(finding.pattern.short or finding.pattern.text)
    if finding.error is None:
        replicas = finding.check == "replicas"
        return label(finding.message.partition("; ")[0] if replicas else finding.message)
    sought = "not looked for" if unsought else "no pattern fits"
    return label(f"{finding.message}; {sought}" if finding.message else sought)


def _unbounded(finding: Finding, allowed: float | None) -> str:
    """Why a wrong tensor has no error as a multiple of what is allowed."""
    if finding.error is not None and math.isinf(finding.error):
        return "the reference is exactly zero there, or a value is not finite"
    if allowed == 0:
        return "no error is allowed: rounding cannot change this tensor, so it must be equal"
    return "what is wrong is not the size of an error"


def tensors(compared: Compared) -> Table | None:
    """Every compared tensor: error, what rounding allows, and how it is wrong."""
    if not compared.tensors:
        return None
    shown = sorted(compared.tensors, key=_rank)[:MOST_TENSORS]
    left = len(compared.tensors) - len(shown)
    rows: list[tuple[Cell, ...]] = [
        (
            label(one.id.path),
            one.id.kind,
            step_text(one.id.step),
            one.id.microbatch,
            number(one.error),
            number(one.allowed),
            one.shown,
            one.said,
        )
        for one in shown
    ]
    columns = (
        "tensor",
        "kind",
        "step",
        "micro-batch",
        "error",
        "allowed",
        "error ÷ allowed",
        "pattern",
    )
    note = f"in {compared.rung.dtype}; wrong tensors in the order of dataflow, then by their errors"
    if sum(one.state in ("first", "wrong") for one in shown) > MAX_EXPLAINED:
        note += f"; patterns are looked for in the first {MAX_EXPLAINED} wrong tensors"
    if left:
        note += f"; {left} with smaller errors are left out"
    note += _blanks(shown)
    return Table(
        title="Compared tensors",
        columns=columns,
        rows=tuple(rows),
        states=tuple(one.state for one in shown),
        anchors=tuple(one.anchor for one in shown),
        note=note,
    )


def _blanks(shown: Sequence[One]) -> str:
    """What an empty error means in the rows that have one, in words."""
    lacking = [one for one in shown if one.error is None]
    text = ""
    if any(one.ratio == 0 and one.state != "first" for one in lacking):
        text += "; – beside 0: the values are equal, bit by bit, so there is no error"
    if any(one.missing or one.ratio == math.inf for one in lacking):
        text += "; – in a wrong row: a Run has no such tensor, or ranks that must agree differ"
    return text


def step_text(step: int) -> str | int:
    """A step in words: its number, or "before the first step"."""
    return "before the first step" if step == INITIAL else step


def _rank(one: One) -> tuple[bool, float]:
    """Sort key: wrong tensors stay in order, and others follow, the largest errors first."""
    wrong = one.state in ("first", "wrong", "doubt")
    return not wrong, 0.0 if wrong else -(one.ratio or 0.0)


def dtypes(rungs: Sequence[RungJudgement]) -> Table:
    """What was judged in each dtype, and how close it came to what rounding allows."""
    rows: list[tuple[Cell, ...]] = []
    for rung in rungs:
        found = rung.comparison
        worst = label(found.worst_id) if found.worst_id is not None else ""
        verdict = "fail" if found.failed else "inconclusive" if rung.doubts else "pass"
        count = sum(found.compared.values())
        # What fails without an error above the allowed, such as a missing tensor, has no number.
        ratio = number(found.worst) if found.worst > 1 or verdict != "fail" else None
        rows.append((rung.dtype, verdict, count, ratio, worst, rung.rounding))
    columns = ("dtype", "verdict", "tensors", "error ÷ allowed", "largest at", "rounding of")
    blank = any(row[3] is None for row in rows)
    note = "–: what fails is no error that could be measured, such as a missing tensor"
    return Table(title="Dtypes", columns=columns, rows=tuple(rows), note=note if blank else "")
