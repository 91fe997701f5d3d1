"""Validity rules: built-in ones, and those that a program declares."""

import pytest

from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.sweep import Point, divides, requires
from pytest_trainsafe.sweep.validity import invalid


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (Point.of(tp=2, sp=True), None),
        (Point.of(tp=1, sp=True), "sp needs tp > 1"),
        (Point.of(sp=True), "sp needs tp > 1"),
        (Point.of(pp=1, vpp=2), "vpp > 1 needs pp > 1"),
        (Point.of(pp=2, vpp=2), None),
        (Point.of(dp=2, ep=3), "ep=3 does not divide the world size 2"),
        (Point.of(dp=4, ep=2), None),
        (Point.of(dp=2, microbatches=3), "microbatches=3 is not divisible by dp=2"),
        (Point.of(dp=2, microbatches=4), None),
        (
            Point.of(tp=4, cp=2, dp=2),
            "world size 16 (tp=4*cp=2*dp=2) is above --trainsafe-max-world-size=8",
        ),
    ],
)
def test_built_in_rules_say_why_a_point_cannot_run(point, reason):
    assert invalid(point, {}, (), max_world_size=8) == reason


def test_rules_of_a_program_apply_in_the_order_of_its_decorators():
    @requires(lambda point, arguments: "second")
    @requires(divides("heads", "tp"))
    def train(ctx, heads=4):
        """Only its rules are read."""

    rules = train.trainsafe_rules  # type: ignore[attr-defined]

    def reason_at(**axes):
        return invalid(Point.of(**axes), {"heads": 4}, rules, max_world_size=8)

    assert reason_at(tp=3) == "heads=4 is not divisible by tp=3"
    assert reason_at(tp=2) == "second"


def test_divides_checks_the_product_of_its_axes():
    rule = divides("layers", "pp", "vpp")

    assert rule(Point.of(pp=2, vpp=3), {"layers": 4}) == "layers=4 is not divisible by pp*vpp=6"
    assert rule(Point.of(pp=2, vpp=2), {"layers": 4}) is None
    assert rule(Point.of(pp=2), {"layers": 4}) is None


def test_a_rule_about_a_parameter_the_program_lacks_is_an_error():
    with pytest.raises(SweepError, match=r"the program has no parameter 'head'; .*'heads'"):
        divides("head", "tp")(Point.of(tp=2), {"heads": 4})


@pytest.mark.parametrize("answer", [False, True, 3])
def test_a_rule_that_returns_neither_text_nor_none_is_an_error(answer):
    with pytest.raises(SweepError, match=f"returned {answer}; it must return text .* or None"):
        invalid(Point.of(tp=2), {}, [lambda point, arguments: answer], 8)
