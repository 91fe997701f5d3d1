"""Failures with one cause form one family, which names the axis values that cause them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pytest_trainsafe.report.rerun import NO_RUN
from pytest_trainsafe.report.run.families import condition, families
from pytest_trainsafe.report.run.outcome import FirstDifference, Outcome
from pytest_trainsafe.report.run.summary import family_lines
from pytest_trainsafe.sweep.point_summary import ANNOTATED


def outcome(point: str, verdict: str = "pass", tensor: str = "", **more: object) -> Outcome:
    first = FirstDifference(check="compare:activation", tensor=tensor, **more)  # type: ignore[arg-type]
    return Outcome(
        f"test_a.py::test_it[{point.replace(' ', '-')}]",
        verdict,
        failed=verdict != "pass",
        program="gpt.train",
        point=point,
        axes=tuple((word.split("=")[0], word.split("=")[1]) for word in point.split()),
        first=first,
    )


def grid(wrong: Callable[[int, int, bool], bool]) -> list[Outcome]:
    """The Points of tp=1,2,4, cp=1,2 and sp, which fail if `wrong(tp, cp, sp)`."""
    return [
        outcome(
            f"tp={tp} cp={cp} sp={sp}",
            *(("fail", "norm.weight · param_grad") if wrong(tp, cp, sp) else ()),
        )
        for tp in (1, 2, 4)
        for cp in (1, 2)
        for sp in (False, True)
        if tp > 1 or not sp
    ]


def test_failing_points_with_one_cause_are_one_family_with_one_block() -> None:
    found = [outcome(f"tp={tp} cp={cp}", "fail", "w") for tp in (2, 4, 8) for cp in (1, 2, 4, 8)]
    found += [outcome("tp=1 cp=1"), outcome("tp=1 cp=2")]

    (family,) = families(found)
    text = "\n".join(family_lines([family], NO_RUN, detailed=False))

    assert len(family.members) == 12
    assert family.condition == "tp >= 2"
    assert family.lead.point == "tp=2 cp=1"
    assert text.count("rerun") == 1
    assert "fails where tp >= 2; 2 other points pass" in text
    assert "12: tp=2 cp=1, tp=2 cp=2, tp=2 cp=4" in text


def test_points_judged_before_and_after_annotations_were_written_give_no_condition() -> None:
    found = [outcome("tp=1"), outcome("tp=2", "fail"), outcome("tp=4")]
    assert families(found)[0].condition == "tp=2"

    wrote = FirstDifference(check=ANNOTATED, message="layouts are missing for 3 parameters")
    found[1] = dataclasses.replace(found[1], first=wrote)
    (family,) = families(found)

    assert (family.condition, family.common) == ("", "")


def test_a_condition_on_two_axes_names_both_and_no_other_axis() -> None:
    found = grid(lambda tp, cp, sp: cp > 1 and sp)

    (family,) = families(found)

    assert {o.point for o in family.members} == {"tp=2 cp=2 sp=True", "tp=4 cp=2 sp=True"}
    assert family.condition == "cp >= 2 and sp=True"
    assert family.passing == 8


def test_points_with_different_first_tensors_are_one_family_if_the_code_is_the_same() -> None:
    same = {"source": "/a.py:3", "what": "Norm", "located": True}
    found = [
        outcome("tp=2", "fail", "w", **same),
        outcome("tp=4", "fail", "v", **same),
        outcome("tp=8", "fail", "v"),
        outcome("tp=16", "fail", "another"),
    ]

    assert [len(family.members) for family in families(found)] == [3, 1]


def test_one_call_on_which_ranks_disagree_is_one_cause_at_all_points() -> None:
    text = "collective mismatch: collective {} of the group of ranks [{}] differs ({}): rank {} ..."
    waits = "rank {} is at train.py:9 and did not come to all_reduce #{}"
    errors = [
        (text.format(16, "0, 1", "number of elements", 0), "train.py:35"),
        (text.format(4, "1, 3", "shape", 1), "train.py:35"),
        (text.format(4, "1, 3", "shape", 1), "train.py:40"),
        (waits.format(1, 21), "train.py:9"),
        (waits.format(3, 5), "train.py:9"),
    ]
    found = []
    for number, (message, source) in enumerate(errors):
        first = FirstDifference(check="exception", message=message, source=source)
        found.append(dataclasses.replace(outcome(f"dp={number}", "error"), first=first))

    points = {family.points for family in families(found)}

    assert points == {"dp=0, dp=1", "dp=2", "dp=3, dp=4"}


def test_different_details_about_the_same_faulty_code_do_not_split_a_family() -> None:
    found = [
        outcome(
            f"tp={tp}",
            "fail",
            name,
            source="/a.py:3",
            what=f"sums; {name} is set up at /b.py:1",
            located=True,
        )
        for tp, name in ((2, "w"), (4, "v"))
    ]

    assert [len(family.members) for family in families(found)] == [2]


def test_no_condition_is_claimed_that_a_passing_point_meets() -> None:
    found = [outcome("tp=2 cp=1", "fail", "w"), outcome("tp=1 cp=2", "fail", "w")]
    found += [outcome("tp=2 cp=2"), outcome("tp=1 cp=1")]

    (family,) = families(found)

    assert family.condition == ""
    assert condition(found[:2], []) == ""


def test_of_several_conditions_that_fit_the_points_none_is_claimed() -> None:
    """Few Points of a pairwise design: tail and dtype fit as well as tp and tied, the cause."""
    wrong = ("fail", "w")
    found = [
        outcome("tp=2 tied=True tail=2 dtype=float64", *wrong),
        outcome("tp=4 tied=True tail=3 dtype=float64", *wrong),
        outcome("tp=1 tied=True tail=3 dtype=float32"),
        outcome("tp=2 tied=False tail=1 dtype=float64"),
        outcome("tp=1 tied=False tail=2 dtype=float32"),
    ]

    (family,) = families(found)
    text = " ".join(" ".join(family_lines([family], NO_RUN, detailed=False)).split())

    assert family.condition == ""
    assert "fails where" not in text
    assert (
        "every failing point has tp >= 2 and tied=True and tail >= 2 and dtype=float64; no passing "
        "point has all of these" in text
    )


def test_passing_points_with_the_values_of_all_failing_ones_are_counted() -> None:
    found = [outcome("tp=2 cp=1", "fail", "w"), outcome("tp=2 cp=2", "fail", "w")]
    found += [outcome("tp=2 cp=4"), outcome("tp=1 cp=1")]

    (family,) = families(found)

    assert family.condition == ""
    assert family.common == "every failing point has tp >= 2; so does 1 passing one"


def test_a_bound_is_no_wider_than_the_values_that_failed() -> None:
    """tp=4 passes without sp and was never run with it."""
    found = [outcome("tp=2 sp=True", "fail", "w"), outcome("tp=1 sp=True")]
    found += [outcome("tp=2 sp=False"), outcome("tp=4 sp=False")]

    (family,) = families(found)

    assert family.condition == "tp=2 and sp=True"


def test_an_expected_failure_is_in_no_family() -> None:
    expected = outcome("tp=2", "fail", "w")

    assert families([Outcome("t", "fail", failed=False, first=expected.first)]) == []


def test_failures_come_before_errors_and_inconclusive_points() -> None:
    found = [
        *(outcome(f"dp={n}", "inconclusive", "a") for n in (1, 2, 4)),
        outcome("tp=2", "error", "b"),
        outcome("tp=4", "fail", "c"),
    ]

    assert [f.lead.verdict for f in families(found)] == ["fail", "error", "inconclusive"]


def test_the_block_of_a_family_escapes_names_and_has_at_most_80_columns() -> None:
    hostile = "w\x1b[31m " + "x " * 2000
    found = [outcome(f"tp={n}", "fail", hostile, pattern=hostile, cause=hostile) for n in (2, 4)]

    lines = family_lines(families(found), NO_RUN, detailed=False)

    assert "\x1b" not in "".join(lines)
    assert all(len(line) <= 80 for line in lines if "rerun" not in line), lines
    assert len(lines) < 40
