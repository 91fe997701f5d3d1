"""A Point has a value for every known axis, and errors for unknown ones list those it has."""

from __future__ import annotations

import copy
import pickle

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.errors import ArgumentError, UnknownAxisError

POINT = Point.of(tp=2, ep=4, recompute="full", width=8)


def test_axes_have_their_given_or_their_default_value() -> None:
    assert (POINT.tp, POINT.recompute, POINT.width) == (2, "full", 8)
    assert (POINT.cp, POINT.zero, POINT.sp, POINT.compile) == (1, 0, False, False)


def test_ep_and_vpp_have_a_size_but_do_not_multiply_the_world_size() -> None:
    assert (POINT.size("ep"), POINT.size("vpp"), POINT.size("tp"), POINT.size("dp")) == (4, 1, 2, 1)
    assert POINT.world_size == 2


def test_the_size_of_an_axis_that_has_none_is_an_error_that_lists_the_axes_with_one() -> None:
    with pytest.raises(ArgumentError, match=r"point.size\('recompute'\).*tp, cp, dp, pp, ep, vpp"):
        POINT.size("recompute")


def test_an_unknown_axis_is_an_attribute_error_that_lists_the_axes_of_the_point() -> None:
    with pytest.raises(UnknownAxisError, match=r"no axis 'widht'.*tp=2.*point.get\('widht', def"):
        _ = POINT.widht
    assert not hasattr(POINT, "widht")


def test_a_copied_or_pickled_point_equals_the_original() -> None:
    assert copy.deepcopy(POINT) == POINT
    assert pickle.loads(pickle.dumps(POINT)) == POINT  # noqa: S301  # our own bytes


def test_ids_of_numbers_are_readable_and_differ() -> None:
    rates = [1e-3, 3e-4, 1e-05, 1e05, 0.1, 0.01, 1.0, 10.0, -0.1]

    ids = [Point.of(lr=rate).id for rate in rates]

    assert ids[:3] == ["lr0p001", "lr0p0003", "lr1em05"]
    assert len({*ids}) == len(rates)


def test_the_axes_between_ranks_are_those_along_which_they_differ() -> None:
    point = Point.of(dp=2, cp=2, tp=2)

    assert point.axes_between([0, 1]) == ("tp",)
    assert point.axes_between([1, 5]) == ("dp",)
    assert point.axes_between([0, 3]) == ("tp", "cp")
    assert point.axes_between([6]) == ()
