"""A parameter that the reference shares with another leads the report of what it explains."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.leading import led_by_setup
from pytest_trainsafe.judges.compare.judgement import lead_of
from tests.support.compare.traces import Bench, Edit, Record, draw, only
from tests.support.compare.untied_traces import unshared, with_head

DP = Point.of(dp=2)


def double(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 2


def garbage(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return draw("garbage", tuple(part.shape)).to(part.dtype)


def led(bench: Bench, edit: Edit, records: list[Record], dtype: str = "float64") -> Finding:
    """The finding that leads the report."""
    rung = bench.rung(DP, edit, dtype, records)
    comparison = led_by_setup(rung, compare(rung))
    return lead_of([f for f in comparison.findings if f.verdict == "fail"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_gradient_that_lacks_an_unshared_parameters_gradient_is_explained_by_it(
    bench: Bench, dtype: str
) -> None:
    found = led(bench, unshared, with_head(dtype), dtype)
    assert found.where is not None
    assert (found.where.kind, found.where.path) == ("param_grad", "norm.weight")
    assert found.pattern is not None
    assert found.pattern.name == "untied"
    assert "plus the gradient of fc2.head equals the reference" in found.pattern.text
    assert found.pattern.cause.startswith("the model does not share norm.weight with fc2.head")


@pytest.mark.parametrize("kind", ["param_grad", "main_grad"])
def test_another_error_of_the_gradient_is_not_explained_by_an_unshared_parameter(
    bench: Bench, kind: str
) -> None:
    found = led(bench, only(kind, "norm.weight", double), with_head())
    assert found.pattern is not None
    assert found.pattern.name == "scaled"
    found = led(bench, only(kind, "norm.weight", garbage), with_head())
    assert found.pattern is None or found.pattern.name != "untied"


@pytest.mark.parametrize(("module", "explained"), [("fc2", True), ("fc1", False)])
def test_a_wrong_output_is_explained_only_by_a_parameter_of_its_own_module(
    bench: Bench, module: str, explained: bool
) -> None:
    found = led(bench, only("activation", f"{module}.output", garbage), with_head())
    assert found.pattern is None or found.pattern.name == "untied"
    assert (found.pattern is not None) == explained


def test_an_output_whose_error_has_a_pattern_keeps_it(bench: Bench) -> None:
    found = led(bench, only("activation", "fc2.output", double), with_head())
    assert found.pattern is not None
    assert found.pattern.name == "scaled"


def test_a_parameter_without_a_counterpart_fails_no_comparison(bench: Bench) -> None:
    """As of an adapter that starts at zero; the report lists it as not compared."""
    assert not compare(bench.rung(DP, records=with_head(), dtype="float64")).failed
