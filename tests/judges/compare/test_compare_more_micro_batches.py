"""Micro-batches that the reference lacks lead the report of a step that they make wrong."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.leading import led_by_setup
from tests.support.compare.traces import Bench, Edit, healthy, only, training, write


def judged(bench: Bench, edit: Edit, left: int) -> Comparison:
    """A comparison with a reference that computes only `left` of the candidate's micro-batches."""
    records = [r for r in training() if r.id.microbatch is None or r.id.microbatch < left]
    rung = bench.rung(Point.of(dp=2), edit, dtype="float64", records=training())
    # No inputs are recorded, which would have the numbers of all micro-batches.
    candidate = write(bench.path(), training(), Point.of(dp=2), edit=edit, inputs=None)
    reference = write(bench.path(), records, inputs=None)
    rung = dataclasses.replace(rung, candidate=candidate, reference=reference)
    comparison = compare(rung)
    return led_by_setup(rung, comparison) if comparison.failed else comparison


@pytest.mark.parametrize(
    ("kind", "path", "by"),
    [("main_grad", "fc1.bias", 1.7), ("activation_grad", "fc2.output", 0.5)],
)
def test_they_lead_where_a_step_is_wrong_or_is_off_by_their_ratio(
    bench: Bench, kind: str, path: str, by: float
) -> None:
    found = judged(bench, only(kind, path, lambda record, at, part: part * by), 2)
    lead = next(f for f in found.findings if f.verdict == "fail")
    assert (lead.check, lead.where) == ("microbatches", None)
    assert lead.message.startswith(
        "the ranks computed micro-batches 2, 3 of step 0, which the reference does not compute: it "
        "has 2 in a step, and they have 4"
    )


@pytest.mark.parametrize(
    ("kind", "path", "by", "left"),
    [
        ("activation", "fc1.output", 1.7, 2),  # wrong in a micro-batch that both have
        ("main_grad", "fc1.bias", 1.7, 4),
    ],
)
def test_they_do_not_lead_where_something_else_is_wrong(
    bench: Bench, kind: str, path: str, by: float, left: int
) -> None:
    found = judged(bench, only(kind, path, lambda record, at, part: part * by), left)
    lead = next(f for f in found.findings if f.verdict == "fail")
    assert lead.where is not None
    assert lead.where.kind == kind


def test_a_step_that_agrees_passes_with_more_micro_batches(bench: Bench) -> None:
    assert not judged(bench, healthy, 2).failed
