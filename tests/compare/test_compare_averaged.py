"""Gradients that are yet to be averaged are told from wrong ones, and offered as an annotation."""

from __future__ import annotations

import pytest
import torch
from compare_traces import Bench, Edit, Record

from pytest_trainsafe.compare.judge import compare
from pytest_trainsafe.compare.propose import lacks, propose
from pytest_trainsafe.report.proposal import proposal_rows
from pytest_trainsafe.sweep.point import Point

BEFORE = ("activation_grad", "param_grad")


def times(factor: float, *kinds: str) -> Edit:
    """These kinds are so many times too large."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * factor if record.id.kind in kinds else part

    return edit


@pytest.mark.parametrize(
    ("point", "factor", "kinds", "wanted"),
    [
        (Point.of(dp=2), 2, BEFORE, {"gradients": {"mean": ["dp"]}}),
        (Point.of(tp=2, dp=2), 2, BEFORE, {"gradients": {"mean": ["dp"]}}),
        (Point.of(cp=2), 2, BEFORE, {"gradients": {"mean": ["cp"]}}),
        (Point.of(dp=2, cp=2), 4, BEFORE, {"gradients": {"mean": ["dp", "cp"]}}),
        (
            Point.of(dp=2),
            2,
            ("loss", *BEFORE),
            {"gradients": {"mean": ["dp"]}, "loss": {"mean": ["dp"]}},
        ),
        (Point.of(dp=2), 2, ("loss",), {"loss": {"mean": ["dp"]}}),
    ],
    ids=["dp", "beside tp", "cp", "dp and cp", "with the loss", "the loss alone"],
)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_what_the_reduction_averages_is_offered_as_a_mean(
    bench: Bench,
    point: Point,
    factor: float,
    kinds: tuple[str, ...],
    wanted: dict[str, object],
    dtype: str,
) -> None:
    rung = bench.rung(point, times(factor, *kinds), dtype=dtype)
    comparison = compare(rung)
    assert lacks(rung, comparison)
    found = propose(rung, comparison, ())
    assert found is not None
    assert (found.wanted, found.left, found.unexplained) == (wanted, None, "")
    assert found.tensors == comparison.wrong.total()


@pytest.mark.parametrize(
    ("point", "factor", "kinds"),
    [
        (Point.of(dp=2), 2, (*BEFORE, "main_grad")),
        (Point.of(dp=2), 3, BEFORE),
        (Point.of(dp=2), 2, ("param_grad",)),
        (Point.of(dp=2), 2, (*BEFORE, "activation")),
        (Point.of(tp=2), 2, BEFORE),
    ],
    ids=["not averaged", "another factor", "some kinds", "more than gradients", "over tp"],
)
def test_no_mean_is_offered_for_what_it_leaves_wrong(
    bench: Bench, point: Point, factor: float, kinds: tuple[str, ...]
) -> None:
    rung = bench.rung(point, times(factor, *kinds), dtype="float64")
    comparison = compare(rung)
    assert comparison.failed
    assert propose(rung, comparison, ()) is None


def test_the_report_says_what_a_mean_means(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), times(2, *BEFORE), dtype="float64")
    found = propose(rung, compare(rung), ())
    assert found is not None
    rows = proposal_rows(found)
    assert [label for label, _, _ in rows] == ["annotate", "", "", "which says"]
    assert rows[1][1] == "gradients: {mean: [dp]}"
    assert rows[3][1].startswith(
        "a rank's loss is a mean over its own share, so its gradients are dp"
    )
