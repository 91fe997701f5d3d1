"""The common factor that clipping gives all gradients is removed, and its cause is reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.common_factor import reference_clips, with_factor
from pytest_trainsafe.judges.compare.factor import factor_cause
from pytest_trainsafe.judges.compare.judgement import lead_of
from pytest_trainsafe.judges.compare.rung import RungTraces
from tests.support.compare.clipped_traces import LIMIT, NORM, both, clipped, norm_wrong, rung
from tests.support.compare.traces import SINGLE, Edit, Record, only, training, write

TP = Point.of(tp=2)


def judged(rung: RungTraces) -> Comparison:
    return with_factor(rung, compare(rung))


def lead(comparison: Comparison):
    return lead_of([f for f in comparison.findings if f.verdict == "fail"])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_wrong_norm_leads_instead_of_the_gradients_that_it_scales(
    tmp_path: Path, dtype: str
) -> None:
    found = judged(rung(tmp_path, TP, norm_wrong({0: 1.5, 1: 1.5}), dtype=dtype))
    assert found.factor is not None
    assert (len(found.factor.scaled), found.factor.apart) == (4, ())
    first = lead(found)
    assert first.where == NORM
    assert first.pattern is not None
    assert first.pattern.cause.startswith("the gradient norm is wrong")


def test_a_different_wrong_norm_on_each_rank_is_one_cause(tmp_path: Path) -> None:
    """If the norm is not summed over tp, each rank scales its gradients by another factor."""
    found = judged(rung(tmp_path, TP, norm_wrong({0: 0.8, 1: 0.9})))
    assert found.factor is not None
    assert (len(found.factor.scaled), found.factor.apart) == (4, ())
    assert "1.25 times on rank 0, 1.11111 times on rank 1" in found.factor.description
    assert lead(found).where == NORM


def test_norms_of_the_ranks_parts_are_recognised_by_the_sum_of_their_squares(
    tmp_path: Path,
) -> None:
    found = judged(rung(tmp_path / "parts", TP, norm_wrong({0: 0.6, 1: 0.8})))
    assert found.factor is not None
    assert found.factor.unsummed == "tp"
    assert (
        found.factor.explanation == "one factor for each rank of tp explains all 4 main gradients"
    )
    pattern = lead(found).pattern
    assert pattern is not None
    assert "a sum of the squares over tp is missing" in pattern.cause
    for norms in ({0: 0.8, 1: 0.9}, {0: 1.5, 1: 1.5}):
        other = judged(rung(tmp_path / f"{norms[0]}", TP, norm_wrong(norms))).factor
        assert other is not None
        assert other.unsummed == ""


@pytest.mark.parametrize(("shares", "apart"), [((0.7, 0.3), 0), ((0.7, 0.5), 1)])
def test_terms_that_each_rank_scales_by_its_own_factor_are_explained_if_they_add_up_without_it(
    tmp_path: Path, shares: tuple[float, float], apart: int
) -> None:
    """As DTensor's gradients of norms are, which its ranks hold as terms until a step sums them."""

    def terms(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return record.tensor.to(part.dtype) * shares[at["tp"]]

    whole = rung(tmp_path / "whole", TP, norm_wrong({0: 0.6, 1: 0.8}))
    edit = both(only("main_grad", "norm.weight", terms), norm_wrong({0: 0.6, 1: 0.8}))
    records = [
        dataclasses.replace(record, layout=(Partial("tp"),))
        if (record.id.kind, record.id.path) == ("main_grad", "norm.weight")
        else record
        for record in clipped("float64", rung_named("float64").epsilon / 8, 3)
    ]
    candidate = write(tmp_path / "terms", records, TP, "float64", edit)
    factor = judged(dataclasses.replace(whole, candidate=candidate)).factor
    assert factor is not None
    assert (len(factor.scaled), len(factor.apart), factor.unsummed) == (4 - apart, apart, "tp")


def by_own_norm(folder: Path, point: Point, axes: tuple[str, ...]) -> Edit:
    """An edit by which each rank along `axes` clips by the norm of the gradients that it holds."""
    squares: dict[tuple[int, ...], float] = {}

    def measure(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "main_grad" and not any(at[each] for each in at if each not in axes):
            place = tuple(at[each] for each in axes)
            squares[place] = squares.get(place, 0.0) + float(part.double().square().sum())
        return part

    rung(folder, point, measure)

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        factor = LIMIT / squares[tuple(at[each] for each in axes)] ** 0.5
        return part * factor if record.id.kind == "main_grad" else part

    return edit


@pytest.mark.parametrize("point", [TP, Point.of(tp=2, dp=2)], ids=["tp", "tp and dp"])
def test_gradients_clipped_by_each_ranks_own_norm_are_recognised_without_reported_norms(
    tmp_path: Path, point: Point
) -> None:
    """Some gradients are replicated, so the squares of the ranks' norms do not add up."""
    edit = by_own_norm(tmp_path / "measured", point, ("tp",))
    found = judged(rung(tmp_path, point, edit, without=lambda id: id.kind == "grad_norm"))
    assert found.factor is not None
    assert (found.factor.clips, found.factor.unsummed, found.factor.alone) == (
        "reference",
        "",
        "tp",
    )
    pattern = lead(found).pattern
    assert pattern is not None
    assert "of each rank alone have the norm of all of the reference's" in pattern.text
    assert pattern.cause.startswith("each rank of tp computes the gradient norm of its own part")


def test_clipping_by_each_ranks_own_norm_is_named_although_the_reported_norm_is_right(
    tmp_path: Path,
) -> None:
    found = judged(rung(tmp_path, TP, by_own_norm(tmp_path / "measured", TP, ("tp",))))
    assert found.factor is not None
    assert (found.factor.clips, found.factor.alone) == ("right norm", "tp")
    assert "although the reported norm is right" in factor_cause(found.factor)


def unlike(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * (1.3, 1.1)[at["tp"]] if record.id.kind == "main_grad" else part


def test_other_factors_of_the_ranks_are_not_said_to_come_from_their_own_norms(
    tmp_path: Path,
) -> None:
    for edit in (unlike, scaled(1.3, "main_grad")):
        folder = tmp_path / edit.__name__
        found = judged(rung(folder, TP, edit, without=lambda id: id.kind == "grad_norm"))
        assert found.factor is not None
        assert (found.factor.clips, found.factor.of_parts) == ("reference", "")
        assert "report the norm with ctx.grad_norm" in factor_cause(found.factor)
    clean = judged(rung(tmp_path / "clean", TP))
    assert clean.factor is None


def test_a_factor_close_to_one_is_not_shown_as_one(tmp_path: Path) -> None:
    found = judged(rung(tmp_path, TP, norm_wrong({0: 1 - 1e-8, 1: 1 - 1e-8})))
    assert found.factor is not None
    assert found.factor.description.startswith("1.00000001 times")


def terms(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """Unequal terms of a sum over dp."""
    return part * (0.75 if at["dp"] else 0.25)


def test_a_gradient_wrong_beyond_the_common_factor_leads_and_is_explained_without_it(
    tmp_path: Path,
) -> None:
    unreduced = only("main_grad", "fc1.bias", terms)
    edit = both(norm_wrong({0: 1.5, 1: 1.5}), unreduced)
    found = judged(rung(tmp_path, Point.of(dp=2), edit))
    assert found.factor is not None
    assert [id.path for id in found.factor.apart] == ["fc1.bias"]
    first = lead(found)
    assert first.where is not None
    assert first.where.path == "fc1.bias"
    assert first.pattern is not None
    assert first.pattern.name == "partial sum"


def test_a_gradient_that_the_norm_lacks_leads_instead_of_the_norm(tmp_path: Path) -> None:
    """It is not scaled by the norm: without it, the norm is too small."""

    def lacking(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        gone = record.id.kind in ("main_grad", "unclipped_grad") and record.id.path == "fc1.weight"
        return None if gone else part

    found = judged(rung(tmp_path, Point.of(dp=2), both(norm_wrong({0: 0.8, 1: 0.8}), lacking)))
    assert found.factor is not None
    assert [id.path for id in found.factor.apart] == ["fc1.weight"]
    first = lead(found)
    assert first.where is not None
    assert (first.check, first.where.path) == ("missing", "fc1.weight")
    assert "its micro-batch gradients are there, but it has none when" in first.message


def scaled(factor: float, *kinds: str) -> Edit:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * factor if record.id.kind in kinds else part

    return edit


def test_gradients_scaled_before_the_norm_is_computed_lead_the_report(tmp_path: Path) -> None:
    """The norm is that of the scaled gradients, so they were scaled before it was computed."""
    edit = scaled(2.0, "main_grad", "grad_norm")
    found = judged(rung(tmp_path, Point.of(dp=2), edit, limit=0))
    assert found.factor is not None
    assert found.factor.clips == ""
    first = lead(found)
    assert first.where is not None
    assert (first.where.kind, first.where.path) == ("main_grad", "norm.weight")
    assert first.pattern is not None
    assert first.pattern.axis == "dp"


def test_a_factor_that_clipping_takes_out_of_the_gradients_leads_with_the_norm(
    tmp_path: Path,
) -> None:
    """If the norm alone were wrong, clipping by it would double every gradient.

    The gradients differ by what clipping adds to the norm, 1e-6.
    """
    edit = both(scaled(0.5, "grad_norm"), scaled(1 - 1e-6, "main_grad"))
    found = judged(rung(tmp_path, Point.of(dp=2), edit))
    assert found.factor is None
    first = lead(found)
    assert first.where == NORM
    assert first.pattern is not None
    assert first.pattern.text == "the value is 0.5 times the reference, a factor of 1/dp"


def test_gradients_that_are_scaled_before_clipping_are_led_by_the_norm_with_its_factor(
    tmp_path: Path,
) -> None:
    """The norm of the smaller gradients is below the limit, so the reference alone clips them."""
    norm = next(float(each.tensor) for each in clipped("float64", 0.0, 1) if each.id == NORM)
    edit = both(scaled(0.5, "grad_norm"), scaled(0.5 * norm / LIMIT, "main_grad"))
    found = judged(rung(tmp_path, Point.of(dp=2), edit))
    assert found.factor is None
    first = lead(found)
    assert first.where == NORM
    assert first.pattern is not None
    assert first.pattern.text == "the value is 0.5 times the reference, a factor of 1/dp"


@pytest.mark.parametrize("factor", [2.0, 1 + 1e-6])
def test_a_common_factor_with_a_correct_norm_is_blamed_on_clipping(
    tmp_path: Path, factor: float
) -> None:
    """Also a factor that is nearer to 1 than the error that a reported norm may have."""
    found = judged(rung(tmp_path, TP, scaled(factor, "main_grad")))
    assert found.factor is not None
    assert found.factor.clips == "right norm"
    first = lead(found)
    assert first.pattern is not None
    assert "though the reported norm is right" in first.pattern.cause


def test_a_common_factor_without_clipping_is_not_blamed_on_clipping(tmp_path: Path) -> None:
    """The reported norm is wrong by another factor than the gradients."""
    edit = both(scaled(2.0, "main_grad"), scaled(1.3, "grad_norm"))
    found = judged(rung(tmp_path, TP, edit, limit=0))
    assert found.factor is not None
    assert found.factor.clips == ""
    assert lead(found).where.kind == "main_grad"


def test_without_a_recorded_norm_clipping_is_detected_from_the_reference(tmp_path: Path) -> None:
    edit = scaled(1.3, "main_grad")
    found = judged(rung(tmp_path, TP, edit, without=lambda id: id.kind == "grad_norm"))
    assert found.factor is not None
    assert found.factor.clips == "reference"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("factor", "clips"), [(1 / 4, False), (1 / 24, False), (0.2437, True)])
def test_a_mean_over_micro_batches_is_not_taken_for_clipping(
    tmp_path: Path, dtype: str, factor: float, clips: bool
) -> None:
    found = rung(tmp_path, TP, limit=0, dtype=dtype)
    records = training(dtype, rung_named(dtype).epsilon / 8, 1, steps=1)
    divided = write(tmp_path / "divided", records, SINGLE, dtype, scaled(factor, "main_grad"))
    gradients = [record.id for record in records if record.id.kind == "main_grad"]
    assert reference_clips(dataclasses.replace(found, reference=divided), gradients) is clips


def reported_first(comparison: Comparison) -> Comparison:
    """The comparison of a program that reports the norm before the optimizer's step."""
    norms = [f for f in comparison.findings if f.where == NORM]
    others = [f for f in comparison.findings if f.where != NORM]
    return dataclasses.replace(comparison, findings=[*norms, *others])


@pytest.mark.parametrize("limit", [1.0, 0.0])
def test_a_norm_that_is_reported_before_the_gradients_does_not_lead(
    tmp_path: Path, limit: float
) -> None:
    unreduced = only("main_grad", "fc1.bias", terms)
    times = 1.5 if limit else 1.0
    larger = only("grad_norm", "grad_norm", lambda record, at, part: part * 1.01)
    edit = both(both(norm_wrong({0: times, 1: times}), unreduced), larger)
    rung_ = rung(tmp_path, Point.of(dp=2), edit, limit=limit)
    found = with_factor(rung_, reported_first(compare(rung_)))
    first = lead(found)
    assert first.where is not None
    assert first.where.path == "fc1.bias"


def test_a_factor_of_only_some_gradients_is_not_a_common_factor(tmp_path: Path) -> None:
    def some(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        wrong = record.id.kind == "main_grad" and record.id.module == "fc1"
        return part * 1.5 if wrong else part

    found = judged(rung(tmp_path, TP, some))
    assert found.failed
    assert found.factor is None


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_equal_clipping_passes(tmp_path: Path, dtype: str) -> None:
    clean = rung(tmp_path, TP, dtype=dtype)
    assert not compare(clean).failed
