"""What only a later step than the test's last would show stands among what was not compared."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.guards.later_steps import (
    different_numbers,
    different_settings,
    later_steps,
)
from pytest_trainsafe.trace.facts import Counted, Settings
from tests.support.compare.traces import SINGLE, Bench, training, write

POINT = Point.of(tp=2)
RECORDS = training("float64")[:1]


def different(bench: Bench, ours: list[Settings], theirs: list[Settings]) -> list[str]:
    candidate = write(bench.path(), RECORDS, POINT, notes=ours)
    reference = write(bench.path(), RECORDS, SINGLE, notes=theirs)
    return different_settings(candidate, reference)


def group(*parameters: str, **values: str) -> Settings:
    return Settings(values, parameters)


def test_equal_settings_are_not_listed(bench: Bench) -> None:
    groups = [group("a", lr="0.1", betas="0.9 0.95"), group("b", lr="0.2", betas="0.9 0.95")]

    assert different(bench, groups, groups[::-1]) == []


def test_after_a_failure_a_setting_is_named_as_what_may_cause_it(bench: Bench) -> None:
    ours, theirs = (
        write(bench.path(), RECORDS, SINGLE, notes=[group("a", lr=rate)]) for rate in ("0.1", "0.2")
    )
    [sentence] = different_settings(ours, theirs, failed=True)
    assert sentence == (
        "the optimizer's settings differ after the last step: lr is 0.1 in the candidate and 0.2 "
        "in the reference, for a"
    )


def test_a_setting_that_differs_is_listed_with_both_values_and_the_parameters(bench: Bench) -> None:
    ours = [group("a", "b", momentum="0.5", lr="0.1"), group("c", momentum="0.9", lr="0.1")]
    theirs = [group("a", "b", "c", momentum="0.9", lr="0.1")]

    [sentence] = different(bench, ours, theirs)

    assert "momentum is 0.5 in the candidate and 0.9 in the reference, for a, b;" in sentence


def test_a_parameter_in_the_wrong_group_is_listed_though_all_values_occur(bench: Bench) -> None:
    ours = [group("a", "bias", weight_decay="0.1"), group("norm", weight_decay="0.0")]
    theirs = [group("a", weight_decay="0.1"), group("bias", "norm", weight_decay="0.0")]

    [sentence] = different(bench, ours, theirs)

    assert "weight_decay is 0.1 in the candidate and 0 in the reference, for bias;" in sentence


def test_flat_copies_are_compared_by_the_values_that_occur(bench: Bench) -> None:
    theirs = [group("a", lr="0.1"), group("b", lr="0.2")]

    assert different(bench, [group(lr="0.1"), group(lr="0.2")], theirs) == []
    [sentence] = different(bench, [group(lr="0.1")], theirs)
    assert "lr is 0.1 in the candidate and 0.1 and 0.2 in the reference; train" in sentence


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("0.1", "0.1000001"),  # a schedule that computes in another order
        ("True", "True"),
        ("nan", "nan"),
    ],
)
def test_settings_that_differ_by_rounding_are_not_listed(
    bench: Bench, ours: str, theirs: str
) -> None:
    assert different(bench, [group("a", key=ours)], [group("a", key=theirs)]) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ("0.9 0.95", "0.9 0.999", "(0.9, 0.95) in the candidate and (0.9, 0.999) in"),
        ("True", "False", "True in the candidate and False in"),
        ("0.9", "0.9 0.95", "0.9 in the candidate and (0.9, 0.95) in"),
    ],
)
def test_tuples_and_switches_that_differ_are_listed(
    bench: Bench, ours: str, theirs: str, shown: str
) -> None:
    [sentence] = different(bench, [group("a", key=ours)], [group("a", key=theirs)])

    assert shown in sentence


def test_a_setting_that_one_side_lacks_is_not_listed(bench: Bench) -> None:
    assert different(bench, [group("a", lr="0.1", d="1.0")], [group("a", lr="0.1")]) == []


def test_at_most_three_settings_are_listed(bench: Bench) -> None:
    ours = [group("a", **{f"key{i}": "1.0" for i in range(5)})]
    theirs = [group("a", **{f"key{i}": "2.0" for i in range(5)})]

    sentences = different(bench, ours, theirs)

    assert len(sentences) == 3
    assert sentences[-1].endswith("(2 more settings differ)")


def numbers(bench: Bench, ours: str, theirs: str, owner: str = "module up") -> list[str]:
    candidate = write(bench.path(), RECORDS, POINT, notes=[Counted("module up", {"seen": ours})])
    reference = write(bench.path(), RECORDS, SINGLE, notes=[Counted(owner, {"seen": theirs})])
    return different_numbers(candidate, reference)


def test_a_number_that_a_module_counts_differently_is_listed(bench: Bench) -> None:
    [sentence] = numbers(bench, "8.0", "4.0")

    assert (
        "the number seen of the module up: after the last step, it is 8 in the candidate and 4"
        in (sentence)
    )


def test_equal_numbers_and_those_of_one_side_are_not_listed(bench: Bench) -> None:
    assert numbers(bench, "8.0", "8.0") == []
    assert numbers(bench, "8.0", "4.0", "module down") == []


def test_a_test_of_one_step_says_that_a_second_step_is_not_compared(bench: Bench) -> None:
    one = [each for each in training("float64") if each.id.step <= 0]
    several = write(bench.path(), training("float64"), SINGLE)
    single = write(bench.path(), one, SINGLE)

    [sentence] = later_steps(single, single)

    assert sentence.endswith("because the test trains one step")
    assert later_steps(several, several) == []
