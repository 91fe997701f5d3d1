"""A wrongly declared mean of gradients is reported; wrong code is not excused by another mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import torch

from pytest_trainsafe.core.layout import Layout, Scaled
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.declarations.misaveraged import (
    Misaveraged,
    may_be_misaveraged,
    misaveraged,
)
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.text.proposal import misaveraged_rows
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Bench, Record, healthy

POINT = Point.of(dp=2, cp=2)


def declaring(rung: RungTraces, *axes: str) -> RungTraces:
    """The rung as if the annotations declared gradients to be means over these axes."""
    added: Layout = tuple(Scaled(axis) for axis in axes)
    ranks = []
    for rank in rung.candidate.ranks:
        tensors = {
            id: msgspec.structs.replace(event, layout=event.layout + added)
            if id.kind in ("activation_grad", "param_grad")
            else event
            for id, event in rank.tensors.items()
        }
        ranks.append(dataclasses.replace(rank, tensors=tensors))
    trace = rung.candidate
    return dataclasses.replace(rung, candidate=Trace(trace.path, trace.manifest, ranks))


def averaging(factor: float) -> Callable[[Record, dict[str, int], torch.Tensor], torch.Tensor]:
    """An edit for gradients of a loss that is a mean over the rank's own share of the batch."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * factor if record.id.kind in ("activation_grad", "param_grad") else part

    return edit


def found(rung: RungTraces) -> Misaveraged | None:
    return misaveraged(rung, compare(rung), ())


def test_a_mean_declared_over_too_many_axes_is_reported_with_the_axis_that_fits(
    bench: Bench,
) -> None:
    wrong = found(declaring(bench.rung(POINT, averaging(2.0), "float64"), "dp", "cp"))
    assert wrong is not None
    assert (wrong.gradients, wrong.fitting_gradients) in [
        (("dp", "cp"), ("dp",)),
        (("dp", "cp"), ("cp",)),
    ]
    text = misaveraged_rows(wrong)[0][1]
    assert text.startswith("gradients: {mean: [dp, cp]}, in annotations= of ctx.watch")


def test_a_declared_mean_of_gradients_that_are_sums_is_reported(bench: Bench) -> None:
    wrong = found(declaring(bench.rung(POINT, healthy, "float64"), "dp"))
    assert wrong is not None
    assert (wrong.gradients, wrong.fitting_gradients) == (("dp",), ())
    assert "with no mean of gradients every tensor matches" in misaveraged_rows(wrong)[0][1]


def test_a_mean_of_the_loss_that_nothing_declares_is_said_to_be_missing() -> None:
    missing = Misaveraged(("dp",), (), ("dp",), ("dp",), tensors=2, file="")
    text = misaveraged_rows(missing)[0][1]
    assert text.startswith("with loss: {mean: [dp]} in annotations= of ctx.watch every tensor")
    assert "without it, 2 tensors differ" in text
    assert "either this declaration is missing, or the program divides" in text


def test_a_correctly_declared_mean_passes(bench: Bench) -> None:
    rung = declaring(bench.rung(POINT, averaging(2.0), "float64"), "dp")
    assert not compare(rung).failed


def test_one_wrong_gradient_is_not_explained_by_another_mean(bench: Bench) -> None:
    def one(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        wrong = record.id.kind == "param_grad" and record.id.path == "fc1.bias"
        return averaging(4.0 if wrong else 2.0)(record, at, part)

    assert found(declaring(bench.rung(POINT, one, "float64"), "dp")) is None


def test_an_error_after_the_reduction_is_not_blamed_on_a_declared_mean(bench: Bench) -> None:
    def reduced(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        part = averaging(2.0)(record, at, part)
        return part * 2 if record.id.kind == "main_grad" else part

    rung = declaring(bench.rung(POINT, reduced, "float64"), "dp", "cp")
    assert not may_be_misaveraged(rung, compare(rung))
