"""Judges a Case at every rung with the default settings, and yields rows of data.

Unlike a test, it does not stop at the first rung that fails.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pytest_trainsafe.judges.compare import compare as comparing
from pytest_trainsafe.judges.compare.guards.vacuity import guard
from pytest_trainsafe.judges.compare.ladder.runs import make_rung, measured_again
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.case import Case

#: The most findings that a row keeps.
MAX_FINDINGS = 5

Row = dict[str, Any]


def judged_rows(session: Session, case: Case) -> Iterator[Row]:
    """Yields a row for each rung. If judging a rung raises, its row has the "error"."""
    candidate, reference = session.candidate(case), session.reference(case)
    try:
        for dtype in case.rungs:
            candidate.prefetch(dtype)
            reference.prefetch(dtype)
        for dtype in case.rungs:
            began = time.perf_counter()
            row: Row = {"dtype": dtype}
            try:
                shadowed = dtype != "float64"
                rung = make_rung(dtype, candidate, reference, shadowed)
                row |= judged_row(rung, dtype, reference)
            except GroupFailure as failure:
                row |= {"verdict": "error", "error": str(failure)}
            except Exception:  # a row must show errors of the judge itself
                row |= {"verdict": "error", "error": traceback.format_exc()}
            yield {**row, "seconds": round(time.perf_counter() - began, 3)}
    finally:
        session.discard(candidate)


def judged_row(rung: RungTraces, dtype: str, reference: Traces) -> Row:
    """The verdict of a rung, with its findings.

    The worst ratios are those of the first comparison, which uses one sample of noise.
    """
    ratios: dict[str, tuple[float, str]] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ladder does
    try:
        with _ratios(ratios):
            comparison = comparing.compare(rung)
        rung, comparison = measured_again(rung, comparison, dtype, reference, comparing.compare)
        doubts = [] if comparison.failed else guard(rung, comparison)
    finally:
        torch.set_num_threads(threads)
    doubts += [finding for finding in comparison.findings if finding.verdict == "inconclusive"]
    failed = [finding for finding in comparison.findings if finding.verdict == "fail"]
    return {
        "rounding": rung.dtype,
        "samples": 1 + len(rung.resampled),
        "verdict": "fail" if failed else "inconclusive" if doubts else "pass",
        "tensors": sum(comparison.compared.values()),
        "findings": [_line(finding) for finding in failed[:MAX_FINDINGS]],
        "inconclusive": sorted({finding.check for finding in doubts}),
        "doubts": [_line(finding) for finding in doubts[:MAX_FINDINGS]],
        "worst": {kind: {"ratio": ratio, "id": id} for kind, (ratio, id) in ratios.items()},
    }


def _line(finding: Any) -> str:
    where = f"{finding.where}: " if finding.where is not None else ""
    measured = ""
    if finding.error is not None and finding.allowed is not None:
        measured = f" (error {finding.error:.3g}, allowed {finding.allowed:.3g})"
    return f"{where}{finding.check}{measured} {finding.message}".partition("\n")[0]


@contextmanager
def _ratios(worst: dict[str, tuple[float, str]]) -> Iterator[None]:
    """Notes the worst ratio of error to allowance of each kind of tensor judged in this context."""
    original = comparing._Comparing.note

    def note(self: Any, id: Any, *arguments: Any, **named: Any) -> Any:
        for each in (*arguments, *named.values()):
            ratio = getattr(each, "ratio", None)
            if isinstance(ratio, float) and ratio >= worst.get(id.kind, (0.0, ""))[0]:
                worst[id.kind] = ratio, str(id)
        return original(self, id, *arguments, **named)

    comparing._Comparing.note = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        comparing._Comparing.note = original  # type: ignore[method-assign]


def worst_of(row: Row) -> tuple[float, str]:
    """The largest ratio of error to allowance in a row, and its tensor; (0.0, "") if none."""
    found = [(entry["ratio"], entry["id"]) for entry in row.get("worst", {}).values()]
    return max(found, default=(0.0, ""))


def count(rows: Sequence[Row], verdict: str) -> int:
    """The number of rows with a verdict."""
    return sum(row["verdict"] == verdict for row in rows)
