"""Gradients that are yet to be averaged are told from wrong ones, and offered as an annotation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest
import torch
from compare_traces import Bench, Edit, Record, training, write

from pytest_trainsafe.align.layout import Layout, Partial, Scaled
from pytest_trainsafe.compare.judge import compare
from pytest_trainsafe.compare.propose import lacks, propose
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.report.proposal import proposal_rows
from pytest_trainsafe.sweep.point import Point
from pytest_trainsafe.trace.reader import Trace

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
    ],
    ids=["dp", "beside tp", "cp", "dp and cp", "with the loss"],
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
        (Point.of(dp=2), 2, ("loss",)),
        (Point.of(dp=2), 2, (*BEFORE, "activation")),
        (Point.of(tp=2), 2, BEFORE),
    ],
    ids=[
        *("not averaged", "another factor", "some kinds", "the loss alone"),
        *("more than gradients", "over tp"),
    ],
)
def test_no_mean_is_offered_for_what_it_leaves_wrong(
    bench: Bench, point: Point, factor: float, kinds: tuple[str, ...]
) -> None:
    rung = bench.rung(point, times(factor, *kinds), dtype="float64")
    comparison = compare(rung)
    assert comparison.failed
    assert propose(rung, comparison, ()) is None


def test_no_mean_is_offered_where_the_optimizer_is_given_something_else(bench: Bench) -> None:
    """Of clipped or normalised gradients a sum and a mean are the same."""
    rung = bench.rung(Point.of(dp=2), times(2, *BEFORE), dtype="float64")
    half = [
        Record(r.id, r.tensor / 2 if r.id.kind == "main_grad" else r.tensor, r.layout)
        for r in training()
    ]
    clipped = dataclasses.replace(
        rung,
        reference=write(bench.path(), half),
        perturbed=write(bench.path(), half),
        candidate=write(bench.path(), half, Point.of(dp=2), "float64", times(2, *BEFORE)),
    )
    comparison = compare(clipped)
    assert comparison.failed
    assert propose(clipped, comparison, ()) is None


def test_no_mean_is_offered_while_some_tensors_could_not_be_judged(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), times(2, *BEFORE), dtype="float64")
    comparison = compare(rung)
    comparison.suspects.append(next(rung.reference.ids()))
    assert not lacks(rung, comparison)
    assert propose(rung, comparison, ()) is None


def test_of_axes_of_one_size_the_other_is_named(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2, cp=2), times(2, *BEFORE), dtype="float64")
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"gradients": {"mean": ["dp"]}}
    assert "It may be cp, which has as many ranks here" in proposal_rows(found)[-1][1]


def declared(rung: Rung, kinds: Sequence[str], layout: Layout) -> Rung:
    """The rung if the candidate's tensors of these kinds were declared so."""
    trace = rung.candidate
    ranks = [
        dataclasses.replace(
            rank,
            tensors={
                id: msgspec.structs.replace(event, layout=layout) if id.kind in kinds else event
                for id, event in rank.tensors.items()
            },
        )
        for rank in trace.ranks
    ]
    return dataclasses.replace(rung, candidate=Trace(trace.path, trace.manifest, ranks))


def test_where_gradients_are_declared_means_the_loss_is_offered_as_one(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), times(2, "loss", *BEFORE), dtype="float64")
    rung = declared(rung, BEFORE, (Scaled("dp"),))
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"loss": {"mean": ["dp"]}}
    assert "what ctx.loss is given is a mean over" in proposal_rows(found)[-1][1]


def test_gradients_are_means_over_what_the_loss_is_declared_a_mean_over(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "loss":
            return record.tensor.to(part.dtype)
        return part * 2 if record.id.kind in BEFORE else part

    rung = bench.rung(Point.of(dp=2, cp=2), edit, dtype="float64")
    rung = declared(rung, ("loss",), (Partial("cp", "avg"),))
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"gradients": {"mean": ["cp"]}}


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
