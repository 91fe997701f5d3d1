"""Gradients that the optimizer's step reduces are compared as it reduces them, and no others."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.not_compared import not_compared
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
