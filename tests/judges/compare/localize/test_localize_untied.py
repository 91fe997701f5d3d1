"""A parameter that is not shared is named as the reason of a wrong gradient, with its module."""

from __future__ import annotations

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.trace.facts import SetUp
from tests.support.compare.traces import Bench, only
from tests.support.compare.untied_traces import unshared, with_head
from tests.support.localize.blamed_traces import blamed, located_faults, noting, text_of

DP = Point.of(dp=2)


def test_an_unshared_parameter_is_reported_with_the_module_that_holds_it(bench: Bench) -> None:
    rung = bench.rung(DP, unshared, "float64", with_head())
    assert ("weights", "norm.weight") in [(f.phase, f.target) for f in blamed(rung)]
    found = located_faults(noting(rung, SetUp("fc2", "/me/build.py:9")))
    assert "of norm.weight are wrong: they lack the gradients of fc2.head" in text_of(found)
    assert found.what == "module class Fc2; fc2 is set up at /me/build.py:9"


def test_a_gradient_with_another_error_is_blamed_on_its_own_module(bench: Bench) -> None:
    wrong = only("param_grad", "norm.weight", lambda record, at, part: part * 2)
    found = located_faults(bench.rung(DP, wrong, "float64", with_head()))
    assert "of norm.weight are wrong" in text_of(found)
    assert "fc2.head" not in text_of(found)
    assert found.what.startswith("module class Norm")
