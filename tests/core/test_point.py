"""A Point answers for every axis it could have, and says how to ask for others."""

from __future__ import annotations

import copy
import pickle

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.errors import ArgumentError, UnknownAxisError

POINT = Point.of(tp=2, ep=4, recompute="full", width=8)


def test_axes_have_their_value_or_their_trivial_one() -> None:
    assert (POINT.tp, POINT.recompute, POINT.width) == (2, "full", 8)
    assert (POINT.cp, POINT.zero, POINT.sp, POINT.compile) == (1, 0, False, False)


def test_experts_and_chunks_have_a_size() -> None:
    assert (POINT.size("ep"), POINT.size("vpp"), POINT.size("tp"), POINT.size("dp")) == (4, 1, 2, 1)
    assert POINT.world_size == 2


def test_an_axis_without_a_size_says_how_to_ask_for_it() -> None:
    with pytest.raises(ArgumentError, match=r"point.size\('recompute'\).*tp, cp, dp, pp, ep, vpp"):
        POINT.size("recompute")


def test_an_axis_that_nobody_knows_is_an_attribute_error_with_what_exists() -> None:
    with pytest.raises(UnknownAxisError, match=r"no axis 'widht'.*tp=2.*point.get\('widht', def"):
        _ = POINT.widht
    assert not hasattr(POINT, "widht")


def test_a_point_is_copied_and_pickled_as_before() -> None:
    assert copy.deepcopy(POINT) == POINT
    assert pickle.loads(pickle.dumps(POINT)) == POINT  # noqa: S301  # our own bytes
