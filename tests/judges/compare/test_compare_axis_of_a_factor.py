"""A factor whose axis is known names the axis once."""

from __future__ import annotations

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from pytest_trainsafe.judges.compare.patterns.scale import of_axis
from tests.support.compare.faults import reference_tensor, wrong_tensor

KNOWN = "the value is 2 times the reference, a factor of dp"


def test_an_axis_that_is_found_a_second_time_is_named_once() -> None:
    found = Pattern("scaled", "the value is 2 times the reference", "dp", "", 2.0, ("dp",))

    once = of_axis(found, "dp")

    assert once.text == KNOWN
    assert of_axis(once, "dp") == once


def test_an_axis_that_reuses_the_ranks_of_others_is_named_beside_them() -> None:
    point = Point.of(dp=4, ep=2, tp=2)
    wrong = wrong_tensor(reference_tensor(), lambda r, at: 2 * r, point=point, kind="main_grad")
    found = explain(wrong)
    assert found is not None
    assert found.text.endswith("which equals tp or ep")
