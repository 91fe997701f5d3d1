"""An annotation that contradicts a parameter's attributes has no effect, and is reported."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from pytest_trainsafe.record.context import Context


def notes(record: Any, entry: dict[str, Any], point: dict[str, int]) -> list[str]:
    """The notes of a run in which the weight's attributes say that its rows are sharded over tp."""
    model = nn.Linear(4, 4)
    model.weight.tensor_model_parallel = True  # type: ignore[attr-defined]
    model.weight.partition_dim = 0  # type: ignore[attr-defined]

    def train(ctx: Context) -> None:
        ctx.watch(model, annotations={"parameters": {"weight": entry}})
        with ctx.step():
            pass

    found: list[str] = record(train, point=point).rank.note("unused_annotation")
    return found


def test_an_annotation_with_another_dimension_is_reported_with_both_layouts(record: Any) -> None:
    [text] = notes(record, {"tp_dim": 1}, {"tp": 2})
    assert "the annotation parameters: weight says that weight is dimension 1 cut over tp" in text
    assert "the parameter's attributes say dimension 0 cut over tp" in text
    assert "not used" in text


def test_an_annotation_with_other_blocks_is_reported(record: Any) -> None:
    [text] = notes(record, {"tp_dim": 0, "blocks": [4, 4]}, {"tp": 2})
    assert "in blocks [4, 4]" in text


@pytest.mark.parametrize("dim", [0, -2])
def test_an_annotation_that_agrees_with_the_attributes_is_not_reported(
    record: Any, dim: int
) -> None:
    assert notes(record, {"tp_dim": dim}, {"tp": 2}) == []


def test_a_contradiction_about_tp_is_not_reported_without_the_tp_axis(record: Any) -> None:
    assert notes(record, {"tp_dim": 1}, {"dp": 2}) == []
