"""Deduction finds the weakest safe precondition, in one or several scenarios."""

from __future__ import annotations

from pytest_trainsafe.judges.learn.conditions import ALWAYS, Condition, Features, Mark, Precondition
from pytest_trainsafe.judges.learn.inference.deduce import deduce

SAME, DIFFERENT = Mark.SAME, Mark.DIFFERENT


def none_forbidden(field: str) -> bool:
    return False


def test_a_rule_without_failing_examples_always_holds() -> None:
    found = deduce([({"phase": "forward"}, 5, 0)], False, none_forbidden)
    assert found is not None
    assert found.precondition == ALWAYS
    assert found.covered == 5


def test_only_conditions_that_exclude_failing_examples_are_kept() -> None:
    """Replicated parameters are equal and split ones differ; the device is the same for all."""
    whole: Features = {"split": False, "device": "cpu", "tp": DIFFERENT}
    cut: Features = {"split": True, "device": "cpu", "tp": DIFFERENT}
    found = deduce([(whole, 9, 0), (cut, 0, 20)], True, none_forbidden)
    assert found is not None
    assert str(found.precondition) == "split is False"


def test_two_scenarios_are_joined_into_one_precondition() -> None:
    replica: Features = {"split": True, "dp": DIFFERENT, "tp": SAME}
    whole: Features = {"split": False, "dp": SAME, "tp": DIFFERENT}
    cut: Features = {"split": True, "dp": SAME, "tp": DIFFERENT}
    found = deduce([(replica, 50, 0), (whole, 10, 0), (cut, 0, 40)], True, none_forbidden)
    assert found is not None
    assert found.covered == 60
    assert len(found.precondition.any_of) == 2
    assert found.precondition.holds(replica)
    assert found.precondition.holds(whole)
    assert not found.precondition.holds(cut)


def test_a_rule_whose_passing_and_failing_examples_have_equal_features_is_dropped() -> None:
    same: Features = {"phase": "forward"}
    assert deduce([(same, 30, 30)], False, none_forbidden) is None


def test_a_forbidden_field_is_not_used_in_a_precondition() -> None:
    counts: list[tuple[Features, int, int]] = [
        ({"value": True}, 9, 0),
        ({"value": False}, 0, 9),
    ]
    assert deduce(counts, False, none_forbidden) is not None
    assert deduce(counts, False, lambda field: field == "value") is None


def test_two_examples_are_too_few_for_a_scenario() -> None:
    few: Features = {"phase": "save"}
    assert deduce([(few, 2, 0), ({"phase": "forward"}, 0, 9)], False, none_forbidden) is None


def test_a_condition_on_true_does_not_hold_for_the_integer_one() -> None:
    assert not Condition("constant", "flag", True).holds({"flag": 1})


def test_a_conjunction_implies_each_of_its_conditions() -> None:
    one, other = Condition("constant", "phase", "forward"), Condition("exist", "epoch")
    both, part = Precondition(((one, other),)), Precondition(((one,),))
    assert both.implies(part)
    assert not part.implies(both)
    assert part.implies(ALWAYS)
