"""Gradients that the optimizer's step reduces are compared as it reduces them, and no others."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from pytest_trainsafe.core.layout import Flat
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.not_compared import not_compared
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Reduction
from tests.support.compare.traces import Bench, Edit, Record, draw, only

DP = Point.of(dp=2)

#: fc1.bias has 16 elements.
SCATTER = Reduction(
    "reduce_scatter_tensor(AVG)", ("dp",), "/me/muon.py:9", "", 20, "gradients", True
)


def terms(scale: float) -> Edit:
    """Each rank holds its term of a sum, times a number: 2 makes the reference their mean."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        own = draw(f"term {record.id}", record.tensor.shape).to(part.dtype)
        return scale * (own if at["dp"] else part - own)

    return edit


def judged(bench: Bench, edit: Edit, *facts: Reduction, dtype: str = "float64") -> Comparison:
    rung = bench.rung(DP, only("main_grad", "fc1.bias", edit), dtype, notes=facts)
    comparison = compare(rung)
    if not comparison.failed and comparison.in_step:
        assert "before the optimizer's step, which reduces them over ranks" in " ".join(
            not_compared(rung, comparison)
        )
    return comparison


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("scale", "how"), [(1.0, "the sum over dp"), (2.0, "the mean over dp")])
def test_terms_that_the_step_reduces_pass(bench: Bench, scale: float, how: str, dtype: str) -> None:
    found = judged(bench, terms(scale), SCATTER, dtype=dtype)
    assert not found.failed, found.findings
    assert found.in_step == {"fc1.bias": how}


@pytest.mark.parametrize(
    "facts",
    [
        (),
        (Reduction("all_reduce(SUM)", ("dp",), "/me/fit.py:9", "", 20),),
        (Reduction("all_reduce(SUM)", ("dp",), "/me/muon.py:9", "", 1, "norm", True),),
        (Reduction("all_reduce(SUM)", ("dp",), "/me/muon.py:9", "", 15, "gradients", True),),
    ],
)
def test_terms_are_wrong_if_the_step_reduces_no_tensor_that_may_hold_the_gradient(
    bench: Bench, facts: tuple[Reduction, ...]
) -> None:
    found = judged(bench, terms(2.0), *facts)
    assert found.failed
    assert found.in_step == {}
    pattern = next(f.pattern for f in found.findings if f.pattern is not None)
    assert pattern.cause == "an average over dp is missing for this gradient"


def wrong_terms(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * (1.5 if at["dp"] else 0.7)


def wrong_replicas(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part / 2


@pytest.mark.parametrize("edit", [wrong_terms, wrong_replicas])
def test_values_that_no_reduction_makes_right_fail(bench: Bench, edit: Edit) -> None:
    """Equal halves add up to the reference, but the gradient is already reduced."""
    found = judged(bench, edit, SCATTER)
    assert found.failed
    assert found.in_step == {}


def test_reduced_gradients_are_compared_as_they_are(bench: Bench) -> None:
    found = judged(bench, lambda record, at, part: part, SCATTER)
    assert not found.failed
    assert found.in_step == {}


def test_terms_are_wrong_if_the_ranks_parameters_differ_after_the_step(bench: Bench) -> None:
    """The step reduces other gradients of this size."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        if record.id.path != "fc1.bias" or record.id.step < 0:
            return part
        if record.id.kind == "main_grad":
            return terms(1.0)(record, at, part)
        return part + at["dp"] if record.id.kind == "param" else part

    found = compare(bench.rung(DP, edit, "float64", notes=(SCATTER,)))
    assert found.in_step == {}
    first = next(f for f in found.findings if f.verdict == "fail")
    assert first.where is not None
    assert first.where.kind == "main_grad"


def own_range(scale: float = 1.0) -> Edit:
    """Each dp rank holds its half of the sum of its own micro-batches' gradients, times a number.

    The first two of four micro-batches are those of the first rank.
    """

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        own = (draw(f"grad {record.id.step} {2 * at['dp'] + i} fc1.bias", (16,)) for i in (0, 1))
        total = sum((each.to(part.dtype) for each in own), torch.zeros((), dtype=part.dtype))
        return scale * total[8 * at["dp"] : 8 * at["dp"] + 8]

    return edit


def in_ranges(rung: RungTraces) -> RungTraces:
    """The rung, of whose candidate each dp rank's optimizer updates one half of fc1.bias."""
    ranks = []
    for rank in rung.candidate.ranks:
        half = Flat(8 * rank.coordinates["dp"], 8, (16,), ("dp",))
        tensors = {
            id: msgspec.structs.replace(event, layout=(half,))
            if (id.kind, id.path) == ("main_grad", "fc1.bias")
            else event
            for id, event in rank.tensors.items()
        }
        ranks.append(dataclasses.replace(rank, tensors=tensors))
    return dataclasses.replace(rung, candidate=rung.candidate.with_ranks(ranks))


def judged_in_ranges(bench: Bench, edit: Edit, *facts: Reduction, dtype: str) -> Comparison:
    rung = bench.rung(DP, only("main_grad", "fc1.bias", edit), dtype, notes=facts)
    return compare(in_ranges(rung))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_ranges_of_a_ranks_own_gradients_pass_if_the_step_reduces_them(
    bench: Bench, dtype: str
) -> None:
    found = judged_in_ranges(bench, own_range(), SCATTER, dtype=dtype)
    assert not found.failed, found.findings
    assert found.in_step == {"fc1.bias": "the sum over dp"}


def test_ranges_of_own_gradients_fail_if_the_step_reduces_none(bench: Bench) -> None:
    found = judged_in_ranges(bench, own_range(), dtype="float64")
    assert found.failed
    assert found.in_step == {}


def test_ranges_that_are_not_the_ranks_own_gradients_fail_although_the_step_reduces(
    bench: Bench,
) -> None:
    found = judged_in_ranges(bench, own_range(1.5), SCATTER, dtype="float64")
    assert found.failed
    assert found.in_step == {}


def test_ranges_that_are_reduced_before_the_step_are_compared_as_they_are(bench: Bench) -> None:
    def reduced(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part[8 * at["dp"] : 8 * at["dp"] + 8]

    found = judged_in_ranges(bench, reduced, SCATTER, dtype="float64")
    assert not found.failed
    assert found.in_step == {}
