"""Replicas whose gradients only some ranks scaled are distinguished from other replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.explain.uneven import _multiple, unevenly_scaled
from pytest_trainsafe.judges.compare.rung import RungTraces
from tests.support.compare.traces import Record, draw, parameter, write


@pytest.fixture
def gradient():
    return torch.randn(32, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def moment():
    return torch.randn(32, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("share", [0.095, -0.4])
def test_a_difference_that_is_a_multiple_of_the_gradient_is_explained(gradient, moment, share):
    other = moment + share * gradient
    assert _multiple(moment, other, gradient, gradient) == pytest.approx(share)


def test_states_are_not_explained_if_their_gradients_differ(gradient, moment):
    other = moment + 0.1 * gradient
    assert _multiple(moment, other, gradient, 2 * gradient) is None


def test_differences_that_are_no_multiple_of_the_gradient_are_not_explained(gradient, moment):
    assert _multiple(moment, moment.roll(1, 0), gradient, gradient) is None
    row = moment.clone()
    row[3] += gradient[3]
    assert _multiple(moment, row, gradient, gradient) is None


def test_equal_replicas_and_empty_gradients_are_not_explained(gradient, moment):
    assert _multiple(moment, moment, gradient, gradient) is None
    nothing = torch.zeros_like(gradient)
    assert _multiple(moment, moment + 1, nothing, nothing) is None


def test_rounding_to_bfloat16_does_not_hide_a_multiple_of_the_gradient(gradient, moment):
    other = (moment + 0.1 * gradient).to(torch.bfloat16).double()
    assert _multiple(moment.to(torch.bfloat16).double(), other, gradient, gradient) is not None


@pytest.mark.parametrize(("share", "clipped"), [(0.05, 0), (-0.05, 1)])
def test_the_rank_that_scaled_its_gradient_is_named(
    tmp_path: Path, share: float, clipped: int
) -> None:
    gradient, moment = draw("gradient", (16, 8)), draw("moment", (16, 8))
    id = parameter("main_grad", "norm.weight", 0)
    state = parameter("optimizer_state", "norm.weight.exp_avg", 0)
    records = [Record(id, gradient), Record(state, moment)]

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part + share * gradient if record.id == state and at["tp"] else part

    reference = write(tmp_path / "reference", records)
    candidate = write(tmp_path / "candidate", records, Point.of(tp=2), edit=edit)
    healthy = write(tmp_path / "healthy", records, Point.of(tp=2))
    for where in (state, parameter("param", "norm.weight", 0)):
        found = unevenly_scaled(RungTraces("float64", candidate, reference, reference), where)
        assert found is not None
        assert (found.name, found.axis) == ("uneven", "tp")
        assert f"scaled down on tp rank {clipped} only" in found.cause
        assert unevenly_scaled(RungTraces("float64", healthy, reference, reference), where) is None
    assert unevenly_scaled(RungTraces("float64", candidate, reference, reference), id) is None
