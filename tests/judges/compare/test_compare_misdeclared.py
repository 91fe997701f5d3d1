"""A wrongly declared layout is reported with the one that fits; wrong code is not excused."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from pytest_trainsafe.core.layout import Layout, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.declarations.misdeclared import (
    Misdeclared,
    misdeclared,
    misfits,
)
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.text.proposal import misdeclared_rows
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Bench, Edit, Record, healthy

POINT = Point.of(tp=2)


def declared(rung: RungTraces, path: str, layout: Layout, source: str) -> RungTraces:
    """The rung with this layout, declared by `source`, for all tensors of this path."""
    ranks = []
    for rank in rung.candidate.ranks:
        tensors = {
            id: msgspec.structs.replace(event, layout=layout, layout_source=source)
            if id.path == path
            else event
            for id, event in rank.tensors.items()
        }
        ranks.append(dataclasses.replace(rank, tensors=tensors))
    trace = rung.candidate
    return dataclasses.replace(rung, candidate=Trace(trace.path, trace.manifest, ranks))


def found(rung: RungTraces) -> Misdeclared | None:
    comparison = compare(rung)
    assert comparison.failed
    wrong = misdeclared(rung, comparison, ())
    assert wrong is None or misfits(rung, comparison)
    return wrong


@pytest.mark.parametrize(
    ("path", "layout", "source", "fits"),
    [
        ("fc1.output", (Shard(0, "tp"),), "modules: fc1", "dimension 1 cut over tp"),
        ("norm.output", (Shard(0, "tp"),), "modules: norm", "whole on every rank"),
        ("fc2.weight", (Shard(0, "tp"),), "parameters: fc2.weight", "dimension 1 cut over tp"),
        ("norm.weight", (Shard(0, "tp"),), "attribute", "whole on every rank"),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_wrongly_declared_layout_is_reported_with_the_one_that_fits(
    bench: Bench, path: str, layout: Layout, source: str, fits: str, dtype: str
) -> None:
    wrong = found(declared(bench.rung(POINT, dtype=dtype), path, layout, source))
    assert wrong is not None
    misfit = (
        f"{source} declares dimension 0 cut over tp, but the parts of {path} do not fit this layout"
    )
    assert wrong.sentences == [f"{misfit}; they fit {fits}"]
    assert wrong.left is None
    [first, last] = misdeclared_rows(wrong)
    assert first == ("declared", wrong.sentences[0], True)
    assert "all other tensors agree" in last[1]


def test_a_tensor_still_wrong_with_the_right_layout_is_reported(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        id = record.id
        return part * 2 if (id.kind, id.path) == ("main_grad", "norm.weight") else part

    rung = bench.rung(POINT, edit, dtype="float64")
    wrong = found(declared(rung, "fc1.output", (Shard(0, "tp"),), "modules: fc1"))
    assert wrong is not None
    assert wrong.left is not None
    assert str(wrong.left.where).startswith("norm.weight · main_grad")
    assert "with that layout, norm.weight · main_grad" in misdeclared_rows(wrong)[-1][1]


def wrong(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    later = record.id.step != INITIAL and record.id.path == "fc1.output"
    return part * 1.5 if later else part


def cut_short(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part[:-1].clone() if record.id.path == "fc1.output" else part


@pytest.mark.parametrize(
    ("edit", "layout", "source"),
    [
        (wrong, (Shard(1, "tp"),), "modules: fc1"),
        (wrong, (Shard(0, "tp"),), "modules: fc1"),
        (cut_short, (Shard(1, "tp"),), "modules: fc1"),
        (healthy, (Shard(0, "tp"),), "dtensor"),
    ],
    ids=["values", "values beside a wrong declaration", "a row short", "not by hand"],
)
def test_wrong_values_and_layouts_not_declared_by_hand_are_not_reported_as_misdeclared(
    bench: Bench, edit: Edit, layout: Layout, source: str
) -> None:
    rung = declared(bench.rung(POINT, edit, dtype="float64"), "fc1.output", layout, source)
    assert found(rung) is None
