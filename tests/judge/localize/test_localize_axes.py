"""The axis that a fault needs is the one without which it is gone."""

from __future__ import annotations

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.axes import PARALLEL_AXES
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judge.localize.axes import necessary_axis, parallel
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve


def axis_of(fault, **axes):
    """What is said of a fault that is there where `fault(point)` is true."""
    case = Case(Point.of(**axes), resolve(gpt.train), Settings())
    return necessary_axis(case, parallel(case.point, PARALLEL_AXES), fault)


def test_one_axis_is_named_with_what_does_not_matter():
    axis, text = axis_of(lambda point: point.size("tp") > 1, tp=2, cp=2)
    assert axis == "tp"
    assert text == "tp: at tp=1 the fault is gone, at cp=1 it is still there"


def test_sequence_parallelism_is_not_taken_for_tensor_parallelism():
    assert axis_of(lambda point: bool(point.get("sp", False)), tp=2, sp=True)[0] == "sp"
    assert axis_of(lambda point: point.size("tp") > 1, tp=2, sp=True)[0] == "tp"


def test_two_axes_may_be_needed_together():
    def both(point):
        return point.size("tp") > 1 and point.size("cp") > 1

    axis, text = axis_of(both, tp=2, cp=2, dp=2)
    assert axis == ""
    assert text == "tp and cp together: without any of them the fault is gone"


def test_a_fault_that_is_always_there_needs_no_axis():
    axis, text = axis_of(lambda point: True, tp=2, cp=2)
    assert axis == ""
    assert text == "no single axis: the fault also occurs at tp=1 and at cp=1"


def test_nothing_is_said_of_what_could_not_be_tried():
    assert axis_of(lambda point: None, tp=2) == ("", "")


def test_axes_without_effect_are_not_tried():
    point = Point.of(tp=1, zero=0, recompute="none", sp=False, dp=2, dtype="float32")
    assert parallel(point, PARALLEL_AXES) == ["dp"]
