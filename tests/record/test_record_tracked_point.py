"""A program's Point remembers what the program asked of it."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.errors import ArgumentError, UnknownAxisError
from pytest_trainsafe.record.tracked_point import TrackedPoint

POINT = Point.of(tp=2, sp=True, zero=1)


def test_it_answers_as_the_point_does() -> None:
    asked = TrackedPoint(POINT)

    assert asked.get("sp", False) is True
    assert asked.get("cp", 1) == 1
    assert asked.size("tp") == 2
    assert asked.world_size == 2
    assert (asked.id, str(asked), dict(asked)) == (POINT.id, str(POINT), dict(POINT))
    assert asked.replace(tp=1) == POINT.replace(tp=1)


def test_looking_an_axis_up_asks_for_it_alone() -> None:
    asked = TrackedPoint(POINT)
    asked.get("sp", False)
    asked.size("tp")

    assert asked.axes_read == {"sp", "tp"}


def test_looking_at_all_axes_asks_for_all() -> None:
    asked = TrackedPoint(POINT)
    dict(asked)

    assert asked.axes_read == {"tp", "sp", "zero"}


def test_an_axis_is_also_an_attribute() -> None:
    asked = TrackedPoint(Point.of(tp=2, recompute="full", width=8))

    assert (asked.tp, asked.recompute, asked.width) == (2, "full", 8)
    assert (asked.zero, asked.sp, asked.compile, asked.cp) == (0, False, False, 1)
    assert {"tp", "recompute", "width", "zero", "compile"} <= asked.axes_read


def test_an_unknown_axis_is_an_error_that_names_get() -> None:
    asked = TrackedPoint(POINT)

    with pytest.raises(
        UnknownAxisError, match=r"no axis 'widht'.*tp=2.*ctx.point.get\('widht', def"
    ):
        _ = asked.widht


def test_experts_and_chunks_have_a_size_and_other_axes_say_how_to_ask() -> None:
    asked = TrackedPoint(Point.of(ep=4))

    assert (asked.size("ep"), asked.size("vpp"), asked.size("dp")) == (4, 1, 1)
    with pytest.raises(
        ArgumentError, match=r"size\('zero'\).*tp, cp, dp, pp, ep, vpp.*get\('zero'"
    ):
        asked.size("zero")
