"""A parameter with gradients that no optimizer holds and no step changes is noted."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.not_compared import not_compared
from pytest_trainsafe.trace.facts import Unheld
from tests.support.compare.traces import Bench, Record, training, write

POINT = Point.of(tp=2)
BIAS = "fc1.bias"


def training_of(*, moves: bool, differentiated: bool) -> list[Record]:
    """A training in which BIAS keeps its first values, or moves, and has gradients, or none."""
    records = training()
    first = next(r for r in records if (r.id.kind, r.id.path) == ("param", BIAS))
    assert first.id.step == INITIAL
    kept = []
    for record in records:
        if record.id.path == BIAS:
            if record.id.kind == "param" and not moves:
                record = dataclasses.replace(record, tensor=first.tensor)
            elif record.id.kind in ("param_grad", "main_grad") and not differentiated:
                continue
        kept.append(record)
    return kept


@pytest.mark.parametrize(
    ("moves", "differentiated", "held_by", "noted"),
    [
        (False, True, "nobody", True),
        (False, True, "candidate", False),
        (False, True, "reference", False),
        (True, True, "nobody", False),  # an average that the program's own code changes
        (False, False, "nobody", False),  # frozen
    ],
)
def test_a_parameter_that_both_runs_forgot_is_noted(
    bench: Bench, moves: bool, differentiated: bool, held_by: str, noted: bool
) -> None:
    records = training_of(moves=moves, differentiated=differentiated)
    theirs, ours = (
        [Unheld(() if held_by == run else (BIAS,))] for run in ("reference", "candidate")
    )
    rung = bench.rung(POINT, dtype="float64", records=records, notes=ours)
    rung = dataclasses.replace(rung, reference=write(bench.path(), records, notes=theirs))
    found = [each for each in not_compared(rung, compare(rung)) if "no watched optimizer" in each]
    note = (
        "no watched optimizer holds fc1.bias, and no step changes it, although the backward "
        "computes gradients of it: if it should be trained, give it to an optimizer; else call "
        "requires_grad_(False)"
    )
    assert found == ([note] if noted else [])
