"""Outputs with permuted dimensions are recognised, and wrong values are not excused by an order."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from pytest_trainsafe.align.with_tensors import with_tensors
from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.declarations.misdeclared import misdeclared
from pytest_trainsafe.judges.compare.declarations.propose import propose
from pytest_trainsafe.judges.compare.rung import RungTraces
from tests.support.compare.traces import Bench, Edit, Record


def transposed(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    flows = record.id.kind.startswith("activation")
    return part.T.contiguous() if flows and record.id.module == "fc1" else part


def transposed_and_wrong(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    wrong = record.id.kind == "activation" and record.id.module == "fc1"
    return transposed(record, at, part) * (1.5 if wrong else 1.0)


def rung_of(
    bench: Bench, edit: Edit, point: Point, declared: bool, dtype: str = "float64"
) -> RungTraces:
    """A rung in which the layout of fc1's output is declared, or is not."""
    rung = bench.rung(point, edit, dtype=dtype)
    change: dict[str, object] = {"layout_source": "modules: fc1"}
    if not declared:
        change = {"layout": (), "layout_source": "default"}
    candidate = with_tensors(
        rung.candidate,
        lambda rank: {
            id: msgspec.structs.replace(event, **change)
            if id.module == "fc1" and id.kind.startswith("activation")
            else event
            for id, event in rank.tensors.items()
        },
    )
    return dataclasses.replace(rung, candidate=candidate)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_dimension_order_is_proposed_with_the_layout(bench: Bench, dtype: str) -> None:
    point = Point.of(tp=2, sp=True)
    rung = rung_of(bench, transposed, point, declared=False, dtype=dtype)
    found = propose(rung, compare(rung), ())

    assert found is not None
    entry = {"output": {"tp_dim": -1, "permuted": {"sp": [1, 0]}}}
    assert found.wanted == {"modules": {"fc1": entry}}
    assert (found.left, found.unexplained) == (None, "")
    read = Annotations.of(found.wanted)
    assert read.permuted("fc1", "output", point, 2) == (1, 0)


def test_a_wrong_value_is_not_explained_by_a_dimension_order(bench: Bench) -> None:
    rung = rung_of(bench, transposed_and_wrong, Point.of(tp=2), declared=False)
    found = propose(rung, compare(rung), ())

    assert found is not None
    assert "fc1" not in found.wanted.get("modules", {})
    assert found.left is not None


def test_no_dimension_order_is_proposed_for_an_output_in_logical_order(bench: Bench) -> None:
    rung = rung_of(bench, lambda record, at, part: part, Point.of(tp=2), declared=False)
    found = propose(rung, compare(rung), ())

    assert found is not None
    assert found.wanted == {"modules": {"fc1": {"output": {"tp_dim": -1}}}}


def test_a_missing_dimension_order_of_a_declared_layout_is_reported(bench: Bench) -> None:
    rung = rung_of(bench, transposed, Point.of(tp=2), declared=True)
    wrong = misdeclared(rung, compare(rung), ())

    assert wrong is not None
    assert wrong.left is None
    assert wrong.sentences[0].endswith("fit dimension 1 cut over tp, with permuted: {tp: [1, 0]}")
    wrong_rung = rung_of(bench, transposed_and_wrong, Point.of(tp=2), declared=True)
    assert misdeclared(wrong_rung, compare(wrong_rung), ()) is None
