"""The report names the axis without which a fault does not occur."""

from __future__ import annotations

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.mesh.sweep_axes import PARALLEL_AXES
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.localize.axes import (
    OTHERWISE,
    arguments_at,
    necessary_axis,
    parallel,
)
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve


def axis_of(fault, **axes):
    """The axis and the sentence for a fault that occurs at Points where `fault(point)` is true."""
    found = tried(fault, **axes)
    return found.axis, found.text


def tried(fault, **axes):
    """What Points without one axis show about a fault."""
    case = Case(Point.of(**axes), resolve(gpt.train), Settings())
    return necessary_axis(case, parallel(case.point, PARALLEL_AXES), fault)


def test_the_necessary_axis_is_named_with_the_axis_that_does_not_matter():
    axis, text = axis_of(lambda point: point.size("tp") > 1, tp=2, cp=2)
    assert axis == "tp"
    assert text == "tp: at tp=1 the fault is gone, at cp=1 it is still there"


def test_sequence_parallelism_and_tensor_parallelism_are_distinguished():
    assert axis_of(lambda point: bool(point.get("sp", False)), tp=2, sp=True)[0] == "sp"
    assert axis_of(lambda point: point.size("tp") > 1, tp=2, sp=True)[0] == "tp"


def test_two_axes_that_are_necessary_together_are_named():
    def both(point):
        return point.size("tp") > 1 and point.size("cp") > 1

    axis, text = axis_of(both, tp=2, cp=2, dp=2)
    assert axis == ""
    assert text == "tp and cp together: the fault needs both; without tp or without cp it is gone"


def test_no_axis_is_named_for_a_fault_that_occurs_without_each_axis():
    axis, text = axis_of(lambda point: True, tp=2, cp=2)
    assert axis == ""
    assert text == "no single axis: the fault also occurs at tp=1 and at cp=1"


def test_an_axis_that_another_one_needs_is_tried_without_that_one():
    found = tried(lambda point: point.size("dp") > 1, dp=2, ep=2)
    assert found.axis == "dp"
    assert found.text == "dp: at dp=1 the fault is gone; at ep=1 it is still there"
    assert tried(lambda point: True, dp=2, ep=2).axis == ""


def test_the_axes_without_which_a_fault_stays_are_known():
    assert tried(lambda point: point.size("tp") > 1, tp=2, cp=2, dp=2).stays == ("cp", "dp")
    assert tried(lambda point: True, tp=2).stays == ("tp",)


def test_no_axis_is_named_if_no_point_could_be_tried():
    assert axis_of(lambda point: None, tp=2) == ("", "")


def test_an_axis_without_which_something_else_is_wrong_is_not_said_to_be_necessary():
    def shown(point):
        return OTHERWISE if point.size("dp") == 1 else True

    found = tried(shown, tp=2, dp=2)
    assert (found.axis, found.stays) == ("", ("tp",))
    assert found.text == (
        "no single axis: the fault also occurs at tp=1; at dp=1 something is wrong as well, but "
        "not the same"
    )
    assert tried(lambda point: OTHERWISE, dp=2).text == (
        "no single axis: at dp=1 something is wrong as well, but not the same"
    )

    def gone(point):
        return False if point.size("tp") == 1 else OTHERWISE

    assert tried(gone, tp=2, dp=2).axis == "tp"
    assert tried(gone, tp=2, dp=2).text == (
        "tp: at tp=1 the fault is gone; at dp=1 something is wrong as well, but not the same"
    )


def test_axes_without_effect_are_not_tried():
    point = Point.of(tp=1, zero=0, recompute="none", sp=False, dp=2, dtype="float32")
    assert parallel(point, PARALLEL_AXES) == ["dp"]


def test_a_fault_that_stays_without_an_axis_is_not_tried_without_those_that_need_it():
    def unknown_without_sp(point):
        return True if "sp" not in dict(point) and point.size("tp") == 1 else None

    assert axis_of(unknown_without_sp, tp=2, sp=True) == (
        "",
        "no single axis: the fault also occurs at tp=1",
    )


def test_an_axis_that_is_a_parameter_of_the_program_has_its_value_of_the_other_point():
    """Else a program that takes `sp` itself still divides the sequence at the Point without sp."""
    given = {"layers": 2, "sp": True, "tp": 2, "zero": 1, "bucket": 1}
    point = Point.of(tp=2, sp=True, zero=1, dp=2)
    case = Case(point, resolve(gpt.train), Settings(), candidate_arguments=given)
    assert arguments_at(case, point.without("sp")) == {**given, "sp": False}
    assert arguments_at(case, point.without("tp", "sp")) == {**given, "sp": False, "tp": 1}
    assert arguments_at(case, point.without("zero")) == {**given, "zero": 0}
    assert arguments_at(case, point) == given


def test_an_argument_of_the_candidate_alone_is_kept_at_another_point():
    case = Case(
        Point.of(tp=2, sp=True), resolve(gpt.train), Settings(), candidate_arguments={"sp": False}
    )
    assert arguments_at(case, Point.of(tp=2)) == {"sp": False}
