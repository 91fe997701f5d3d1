"""A program's Point remembers what the program asked of it."""

from __future__ import annotations

from pytest_trainsafe.record.asked import AskedPoint
from pytest_trainsafe.sweep.point import Point

POINT = Point.of(tp=2, sp=True, zero=1)


def test_it_answers_as_the_point_does() -> None:
    asked = AskedPoint(POINT)

    assert asked.get("sp", False) is True
    assert asked.get("cp", 1) == 1
    assert asked.size("tp") == 2
    assert asked.world_size == 2
    assert (asked.id, str(asked), dict(asked)) == (POINT.id, str(POINT), dict(POINT))
    assert asked.replace(tp=1) == POINT.replace(tp=1)


def test_looking_an_axis_up_asks_for_it_alone() -> None:
    asked = AskedPoint(POINT)
    asked.get("sp", False)
    asked.size("tp")

    assert asked.asked == {"sp", "tp"}


def test_looking_at_all_axes_asks_for_all() -> None:
    asked = AskedPoint(POINT)
    dict(asked)

    assert asked.asked == {"tp", "sp", "zero"}
