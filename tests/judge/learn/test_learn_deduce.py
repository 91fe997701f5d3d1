"""Preconditions: the weakest that is safe, in several scenarios, without what tells nothing."""

from __future__ import annotations

from pytest_trainsafe.judge.learn.conditions import ALWAYS, Condition, Features, Mark, Precondition
from pytest_trainsafe.judge.learn.inference.deduce import deduce

SAME, DIFFERENT = Mark.SAME, Mark.DIFFERENT


def nothing(field: str) -> bool:
    return False


def test_without_failures_the_rule_always_holds() -> None:
    found = deduce([({"phase": "forward"}, 5, 0)], False, nothing)
    assert found is not None
    assert found.precondition == ALWAYS
    assert found.covered == 5


def test_only_conditions_that_failures_break_are_kept() -> None:
    """Two replicated parameters are equal, and two split ones differ; all are on one device."""
    whole: Features = {"split": False, "device": "cpu", "tp": DIFFERENT}
    cut: Features = {"split": True, "device": "cpu", "tp": DIFFERENT}
    found = deduce([(whole, 9, 0), (cut, 0, 20)], True, nothing)
    assert found is not None
    assert str(found.precondition) == "split is False"


def test_several_scenarios_are_joined() -> None:
    replica: Features = {"split": True, "dp": DIFFERENT, "tp": SAME}
    whole: Features = {"split": False, "dp": SAME, "tp": DIFFERENT}
    cut: Features = {"split": True, "dp": SAME, "tp": DIFFERENT}
    found = deduce([(replica, 50, 0), (whole, 10, 0), (cut, 0, 40)], True, nothing)
    assert found is not None
    assert found.covered == 60
    assert len(found.precondition.any_of) == 2
    assert found.precondition.holds(replica)
    assert found.precondition.holds(whole)
    assert not found.precondition.holds(cut)


def test_a_rule_that_nothing_tells_apart_is_dropped() -> None:
    same: Features = {"phase": "forward"}
    assert deduce([(same, 30, 30)], False, nothing) is None


def test_a_forbidden_field_is_not_read() -> None:
    counts: list[tuple[Features, int, int]] = [
        ({"value": True}, 9, 0),
        ({"value": False}, 0, 9),
    ]
    assert deduce(counts, False, nothing) is not None
    assert deduce(counts, False, lambda field: field == "value") is None


def test_a_coincidence_of_few_examples_is_no_scenario() -> None:
    few: Features = {"phase": "save"}
    assert deduce([(few, 2, 0), ({"phase": "forward"}, 0, 9)], False, nothing) is None


def test_true_is_not_one() -> None:
    assert not Condition("constant", "flag", True).holds({"flag": 1})


def test_a_conjunction_implies_its_parts() -> None:
    one, other = Condition("constant", "phase", "forward"), Condition("exist", "epoch")
    both, part = Precondition(((one, other),)), Precondition(((one,),))
    assert both.implies(part)
    assert not part.implies(both)
    assert part.implies(ALWAYS)
