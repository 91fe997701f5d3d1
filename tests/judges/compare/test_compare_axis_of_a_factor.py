"""A factor whose axis is known names the axis once."""

from __future__ import annotations

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.patterns.scale import of_axis

KNOWN = "the value is 2 times the reference, a factor of dp"


def test_an_axis_that_is_found_a_second_time_is_named_once() -> None:
    found = Pattern("scaled", "the value is 2 times the reference", "dp", "", 2.0, ("dp",))

    once = of_axis(found, "dp")

    assert once.text == KNOWN
    assert of_axis(once, "dp") == once
