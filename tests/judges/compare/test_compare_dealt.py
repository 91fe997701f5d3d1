"""A parameter cut over dp ranks with other micro-batches is compared by its gradients of steps."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from pytest_trainsafe.core.layout import Layout, Shard, Slices
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.not_compared import not_compared
from pytest_trainsafe.judges.compare.kinds.dealt import Dealt
from pytest_trainsafe.judges.compare.localize.inputs import Compared
from pytest_trainsafe.judges.compare.rung import RungTraces
from tests.support.compare.traces import (
    HIDDEN,
    INNER,
    Bench,
    Edit,
    healthy,
    only,
    parameter,
    training,
)

TABLE = "fc2.weight"
DP = Point.of(dp=2)
OVER_DP: Layout = (Shard(0, "dp"),)


def rung(bench: Bench, edit: Edit = healthy, layout: Layout = OVER_DP) -> RungTraces:
    """A rung whose ranks hold parts of TABLE."""
    records = [
        dataclasses.replace(each, layout=layout) if each.id.path.startswith(TABLE) else each
        for each in training("float64", seed=3)
    ]
    return bench.rung(DP, edit, dtype="float64", records=records)


def test_rows_that_get_the_gradients_of_all_ranks_micro_batches_are_no_hole(bench: Bench) -> None:
    given = rung(bench)
    found = compare(given)
    assert found.findings == []
    assert found.dealt == {TABLE: 8}
    assert found.compared["main_grad"] == 8
    [note] = [each for each in not_compared(given, found) if "micro-batch gradients" in each]
    assert note.startswith(f"not compared: 8 micro-batch gradients of {TABLE}: dp ranks that train")
    assert not Compared(given).gradient(TABLE)
    assert Compared(given).gradient("fc1.weight")


def test_a_wrong_gradient_of_a_step_of_such_rows_is_still_found(bench: Bench) -> None:
    found = compare(rung(bench, only("main_grad", TABLE, lambda r, at, part: part / 2)))
    assert {f.where for f in found.findings} == {parameter("main_grad", TABLE, 0)}


def test_rows_given_as_slices_are_no_hole_either(bench: Bench) -> None:
    """Each rank's ranges are its own, so that each rank's records have a layout of their own."""
    half = HIDDEN // 2
    given = rung(bench)
    ranks = []
    for rank in given.candidate.ranks:
        rows = Slices.rectangle(
            (half * rank.coordinates["dp"], 0), (half, INNER), (HIDDEN, INNER), ("dp",)
        )
        tensors = {
            id: msgspec.structs.replace(event, layout=(rows,))
            for id, event in rank.tensors.items()
            if id.path.startswith(TABLE)
        }
        ranks.append(dataclasses.replace(rank, tensors={**rank.tensors, **tensors}))
    found = compare(dataclasses.replace(given, candidate=given.candidate.with_ranks(ranks)))
    assert found.findings == []
    assert found.dealt == {TABLE: 8}


def test_rows_that_a_rank_lacks_in_a_micro_batch_that_it_trains_are_a_hole(bench: Bench) -> None:
    given = rung(bench)
    first, second = given.candidate.ranks
    mine = {id: event for id, event in first.tensors.items() if id.path != TABLE}
    both = dataclasses.replace(second, tensors={**second.tensors, **mine})
    found = compare(dataclasses.replace(given, candidate=given.candidate.with_ranks([first, both])))
    holes = {f.where for f in found.findings if f.check == "hole"}
    expected = {parameter("param_grad", TABLE, 0, index) for index in range(2)}
    assert expected <= holes


@pytest.mark.parametrize("path", ["norm.weight", "fc1.bias"])
def test_parameters_that_are_whole_or_cut_over_tp_are_compared_by_micro_batches(
    bench: Bench, path: str
) -> None:
    point = Point.of(tp=2, dp=2)
    wrong = bench.rung(point, only("param_grad", path, lambda r, at, p: p * 2), dtype="float64")
    assert not any(id in Dealt(wrong.candidate) for id in wrong.candidate.ids())
    found = compare(wrong)
    assert len([f for f in found.findings if f.where and f.where.path == path]) == 4
