"""A page says in which step a failure begins; a setting with an update's factor is its cause."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.guards.later_steps import Apart
from pytest_trainsafe.judges.compare.ladder.facts import begins, facts_of
from pytest_trainsafe.judges.compare.ladder.known_setting import (
    is_setting,
    of_settings,
    with_known_setting,
)
from pytest_trainsafe.judges.compare.ladder.left_out import left_out
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.trace.facts import Settings as Used
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Record, training, write


def wrong(step: int, kind: str = "activation", factor: float = 0.0) -> Finding:
    where = TensorId(step, None, kind, "up", "weight")  # type: ignore[arg-type]
    pattern = Pattern("scaled", "a multiple", cause="a factor", factor=factor) if factor else None
    return Finding(
        verdict="fail", judge="compare", check="norm", message="", where=where, pattern=pattern
    )


def facts(
    folder: Path, located: Located | None, failing: Sequence[Finding] = (), **axes: Any
) -> list[tuple[str, str]]:
    """The facts about a failure in step 1 of gpt at a Point, with a setting that differs.

    Only the last stage of a pipeline has the tensors.
    """

    def last(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return part if at["pp"] == axes.get("pp", 1) - 1 else None

    case = Case(Point.of(**axes), resolve(gpt.train), Settings())
    candidate = write(folder / "candidate", training(steps=2), case.point, edit=last)
    apart = [Apart("lr", "2", "1", ("up.weight",))]
    return facts_of(case, candidate, failing or [wrong(1)], located, apart)


def test_the_facts_are_the_axis_the_start_what_is_at_fault_and_the_settings(
    tmp_path: Path,
) -> None:
    rows = (
        ("faulty", "the forward of up"), ("reduced by", "one"), ("", "another"),
        ("axis", "tp: at tp=1 the fault is gone"), ("localised", "in 3.0 s"),
    )  # fmt: skip
    found = facts(tmp_path, Located(rows), tp=2, cp=2)

    assert [label for label, _ in found] == ["axis", "begins", "faulty", "reduced by", "settings"]
    assert found[0][1] == "tp: at tp=1 the fault is gone"
    assert found[3][1] == "one; another"
    assert found[4][1] == "lr is 2 in the candidate and 1 in the reference, for up.weight"


def test_without_a_localisation_only_a_single_axis_or_that_of_the_pattern_is_named(
    tmp_path: Path,
) -> None:
    assert facts(tmp_path / "one", None, tp=2)[0] == ("axis", "tp, the only one of this Point")
    assert "axis" not in dict(facts(tmp_path / "two", None, tp=2, cp=2))
    terms = Pattern("partial sum", "terms", "cp")
    failing = [msgspec.structs.replace(wrong(1), pattern=terms)]
    said = "cp, by the pattern; Points without it were not tried"
    assert dict(facts(tmp_path / "pattern", None, failing, tp=2, cp=2))["axis"] == said


def test_with_other_arguments_the_only_axis_is_named_with_them(tmp_path: Path) -> None:
    case = Case(Point.of(tp=2), resolve(gpt.train), Settings(), candidate_arguments={"layers": 1})
    trace = write(tmp_path, training(steps=2), case.point)
    said = "tp, the only one of this Point; the arguments differ from the reference's too"
    assert dict(facts_of(case, trace, [wrong(1)], None, []))["axis"] == said


def test_a_tensor_that_one_stage_holds_has_its_stage_and_ranks(tmp_path: Path) -> None:
    here = next(each.id for each in training(steps=2) if each.id.kind == "activation")
    failing = [msgspec.structs.replace(wrong(0), where=here)]

    found = dict(facts(tmp_path / "pp", None, failing, pp=2, tp=2))
    assert found["stage"] == "pp=1 of 2 stages, on ranks 2, 3"
    assert "stage" not in dict(facts(tmp_path / "tp", None, failing, tp=2))


def test_gradients_and_steps_that_were_not_compared_have_a_reason(tmp_path: Path) -> None:
    records = training(steps=3)
    lacking = [each for each in records if each.id.kind != "activation_grad"]
    whole = write(tmp_path / "reference", records, Point.of())
    rung = RungTraces("float64", write(tmp_path / "candidate", lacking, Point.of()), whole)
    comparison = Comparison("float64", findings=[wrong(1)])
    comparison.compared.update(param_grad=1, main_grad=1)

    assert [text for _, text in left_out(rung, comparison)] == [
        (
            "activation_grad (the gradient that arrives at the output of a module in the "
            "backward): the candidate recorded none"
        ),
        "step 2: what step 1 makes wrong is what they start from",
    ]
    comparison = Comparison("float64", findings=[wrong(INITIAL)])
    [(label, text)] = left_out(rung, comparison)
    assert (label, text.partition(":")[0]) == (
        "not compared", "activations, gradients and updates of all steps",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((1, 1, 2), "in step 1: every tensor of step 0 that was compared agrees"),
        ((3,), "in step 3: every tensor of steps 0 to 2 that was compared agrees"),
        ((0, 1), ""),
        ((INITIAL,), ""),
        ((2, 1), ""),
    ],
)
def test_a_failure_that_begins_in_a_later_step_says_so(steps: tuple[int, ...], said: str) -> None:
    found = [text for _, text in begins([wrong(step) for step in steps])]

    assert [text.partition(",")[0] for text in found] == [said] * bool(said)


@pytest.mark.parametrize(
    ("here", "there", "names", "factor", "named"),
    [
        ("0.1", "0.05", ("up.weight",), 2.0, True),
        ("0.1", "0.05", (), 2.0, True),
        ("0.1", "0.05", ("down.weight",), 2.0, False),
        ("0.1", "0.05", (), 4.0, False),
        ("0.1", "0", (), 2.0, False),
        ("(0.9, 0.1)", "(0.9, 0.2)", (), 2.0, False),
    ],
)
def test_a_setting_is_the_cause_of_an_update_only_with_its_factor_and_its_parameter(
    here: str, there: str, names: tuple[str, ...], factor: float, named: bool
) -> None:
    apart = [Apart("lr", here, there, names)]
    update, gradient = of_settings(
        [wrong(0, "update", factor), wrong(0, "main_grad", 2.0)], apart, ()
    )

    assert update.pattern is not None
    assert gradient.pattern is not None
    assert is_setting(update.pattern) == named
    if named:
        assert update.pattern.cause == "the optimizer's setting lr is 0.1, in the reference 0.05"
    assert gradient.pattern.cause == "a factor"


@pytest.mark.parametrize(
    ("names", "factor", "also", "named"),
    [
        (("up.weight",), 0.0, "activation", True),
        (("up.weight",), 0.667, "activation", True),
        (("up.weight", "down.weight"), 0.0, "activation", False),
        (("down.weight",), 0.0, "activation", False),
        (("up.weight",), 0.0, "main_grad", False),
    ],
    ids=["no pattern", "a factor of its own", "right ones too", "another one", "a wrong gradient"],
)
def test_a_setting_of_all_wrong_updates_and_of_no_others_is_their_cause(
    names: tuple[str, ...], factor: float, also: str, named: bool
) -> None:
    apart = [Apart("weight_decay", "0", "0.1", names)]
    average = msgspec.structs.replace(
        wrong(0), where=TensorId(0, None, "update", "average", "up.weight")
    )
    findings = [wrong(0, "update", factor), average, wrong(0, also)]
    update, follows, other = of_settings(findings, apart, {"up.weight", "down.weight"})
    assert follows.pattern is None
    assert other.pattern is None
    assert (update.pattern is not None and is_setting(update.pattern)) == named


def scheduled(folder: Path, *rates: str) -> Trace:
    """A trace whose optimizer steps with each of `rates`, and keeps the last one."""
    notes = [Used({"lr": rate}, ("up.weight",), step) for step, rate in enumerate(rates)]
    last = Used({"lr": rates[-1]}, ("up.weight",))
    return write(folder, training()[:1], notes=[*notes, last])


def test_a_setting_that_differs_in_the_wrong_step_alone_is_named(tmp_path: Path) -> None:
    """As a schedule that steps twice and ends at the same value."""
    ours = scheduled(tmp_path / "ours", "0.025", "0.075", "0.1")
    theirs = scheduled(tmp_path / "theirs", "0.025", "0.05", "0.1")
    rung = RungTraces("float64", ours, theirs, theirs)
    later = [wrong(1, "update", 1.5), wrong(2, "update", 1.25)]
    comparison = Comparison("float64", later)
    with_known_setting(rung, comparison)
    first, _ = comparison.findings
    assert first.pattern is not None
    assert first.pattern.cause == "the optimizer's setting lr is 0.075, in the reference 0.05"

    right = Comparison("float64", [wrong(0, "update", 1.5)])
    with_known_setting(rung, right)
    assert right.findings[0].pattern is not None
    assert not is_setting(right.findings[0].pattern)


def test_a_setting_of_the_wrong_step_is_said_to_be_and_not_to_end_at_a_value(
    tmp_path: Path,
) -> None:
    ours = scheduled(tmp_path / "ours", "0.075", "0.1")
    theirs = scheduled(tmp_path / "theirs", "0.05", "0.1")
    comparison = Comparison("float64", [wrong(0, "update")])
    with_known_setting(RungTraces("float64", ours, theirs, theirs), comparison)
    pattern = comparison.findings[0].pattern
    assert pattern is not None
    assert pattern.cause == "the optimizer's setting lr is 0.075, in the reference 0.05"
