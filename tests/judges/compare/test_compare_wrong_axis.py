"""A gradient that is summed over an axis of the same size is not only said to lack an average."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from tests.support.compare.faults import like, reference_tensor, wrong_tensor


def over_tp_instead_of_dp(r: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
    """Twice a term of dp, as ranks hold it that sum over tp of the same size."""
    share = like("share", r)
    return 2 * (share if at["dp"] == 0 else r - share)


@pytest.mark.parametrize("kind", ["main_grad", "param_grad"])
def test_a_mean_that_a_sum_over_other_axes_of_the_size_explains_names_both(kind: str) -> None:
    point = Point.of(tp=2, dp=2)
    found = explain(wrong_tensor(reference_tensor(), over_tp_instead_of_dp, point=point, kind=kind))
    assert found is not None
    assert found.cause == (
        "an average over dp is missing for this gradient, or it is summed over the replicas of tp "
        "instead of over dp: both have 2 ranks"
    )


@pytest.mark.parametrize("point", [Point.of(tp=4, dp=2), Point.of(dp=2)])
def test_axes_of_another_size_do_not_explain_a_mean(point: Point) -> None:
    wrong = wrong_tensor(reference_tensor(), over_tp_instead_of_dp, point=point, kind="main_grad")
    found = explain(wrong)
    assert found is not None
    assert found.cause == "an average over dp is missing for this gradient"


def test_the_collectives_of_a_gradient_tell_a_sum_over_the_wrong_axis_from_an_average() -> None:
    wrong = wrong_tensor(
        reference_tensor(), over_tp_instead_of_dp, point=Point.of(tp=2, dp=2), kind="main_grad"
    )
    found = explain(dataclasses.replace(wrong, summed=frozenset({"tp"})))
    assert found is not None
    assert found.cause == "it is summed over the replicas of tp instead of over dp"
    assert found.short == "summed over tp instead of dp"
    both = explain(dataclasses.replace(wrong, summed=frozenset({"tp", "dp"})))
    assert both is not None
    assert both.short == "partial sums over dp, average missing"


def test_a_gradient_that_is_summed_over_an_axis_again_is_said_to_be() -> None:
    point = Point.of(tp=2, dp=2)
    wrong = wrong_tensor(reference_tensor(), lambda r, at: 2 * r, point=point, kind="main_grad")
    found = explain(dataclasses.replace(wrong, again={"dp": ("a.py:3", "a.py:5")}))
    assert found is not None
    assert found.cause == "the gradient is summed over dp twice, at a.py:3 and a.py:5"
    assert (found.axis, found.short) == ("dp", "2 times the reference, a factor of dp")


def test_more_sums_than_a_factor_shows_do_not_explain_it() -> None:
    point = Point.of(tp=2, dp=2)
    wrong = wrong_tensor(reference_tensor(), lambda r, at: 2 * r, point=point, kind="main_grad")
    found = explain(dataclasses.replace(wrong, again={"dp": ("a.py:3", "a.py:3", "a.py:5")}))
    assert found is not None
    assert found.cause.startswith("a division by dp or tp is missing")
