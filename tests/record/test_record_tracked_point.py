"""A TrackedPoint behaves like its Point, and records which axes a program reads."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.errors import ArgumentError, UnknownAxisError
from pytest_trainsafe.record.tracked_point import TrackedPoint

POINT = Point.of(tp=2, sp=True, zero=1)


def test_a_tracked_point_returns_the_values_of_its_point() -> None:
    tracked = TrackedPoint(POINT)

    assert tracked.get("sp", False) is True
    assert tracked.get("cp", 1) == 1
    assert tracked.size("tp") == 2
    assert tracked.world_size == 2
    assert (tracked.id, str(tracked), dict(tracked)) == (POINT.id, str(POINT), dict(POINT))
    assert tracked.replace(tp=1) == POINT.replace(tp=1)


def test_reading_an_axis_records_only_that_axis() -> None:
    tracked = TrackedPoint(POINT)
    tracked.get("sp", False)
    tracked.size("tp")

    assert tracked.axes_read == {"sp", "tp"}


def test_coordinates_record_no_axis_without_a_size() -> None:
    tracked = TrackedPoint(POINT)

    assert tracked.coordinates(1)["tp"] == 1
    assert tracked.axes_read.isdisjoint({"sp", "zero"})


def test_iterating_over_the_point_records_all_axes() -> None:
    tracked = TrackedPoint(POINT)
    dict(tracked)

    assert tracked.axes_read == {"tp", "sp", "zero"}


def test_axes_can_be_read_as_attributes() -> None:
    tracked = TrackedPoint(Point.of(tp=2, recompute="full", width=8))

    assert (tracked.tp, tracked.recompute, tracked.width) == (2, "full", 8)
    assert (tracked.zero, tracked.sp, tracked.compile, tracked.cp) == (0, False, False, 1)
    assert {"tp", "recompute", "width", "zero", "compile"} <= tracked.axes_read


def test_the_error_for_an_unknown_axis_suggests_get() -> None:
    tracked = TrackedPoint(POINT)

    with pytest.raises(
        UnknownAxisError, match=r"no axis 'widht'.*tp=2.*ctx.point.get\('widht', def"
    ):
        _ = tracked.widht


def test_size_accepts_ep_and_vpp_and_suggests_get_for_axes_without_a_size() -> None:
    tracked = TrackedPoint(Point.of(ep=4))

    assert (tracked.size("ep"), tracked.size("vpp"), tracked.size("dp")) == (4, 1, 1)
    with pytest.raises(
        ArgumentError, match=r"size\('zero'\).*tp, cp, dp, pp, ep, vpp.*get\('zero'"
    ):
        tracked.size("zero")
