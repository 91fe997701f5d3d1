"""Failures are one bug if the first wrong tensor is the same, and wrong in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe import TrainsafeFailure
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.fuzz.failures.ending import Ending, ending_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.result import GroupResult, RankResult, Status


def finding(
    module: str = "layers.0.norm",
    kind: Kind = "main_grad",
    check: str = "wrong",
    pattern: str = "scaled",
    text: str = "the value is 0.5 times the reference",
) -> Finding:
    return Finding(
        verdict="fail",
        judge="compare",
        check=check,
        message="differs",
        where=TensorId(0, None, kind, module, "weight"),
        pattern=Pattern(pattern, text),
    )


def doubt(check: str = "moved") -> Finding:
    return Finding(verdict="inconclusive", judge="compare", check=check, message="unknown")


def ended(*findings: Finding) -> Ending:
    return ending_of(TrainsafeFailure("report", findings), ())


def group(*ranks: tuple[Status, str, str]) -> GroupFailure:
    made = tuple(
        RankResult(rank=number, status=status, folder=Path(), error_type=kind, error=text)
        for number, (status, kind, text) in enumerate(ranks)
    )
    return GroupFailure(
        GroupResult(task="t", folder=Path(), ranks=made, seconds=1.0, timeout=2.0, first_failed=0)
    )


def test_a_failure_in_another_layer_and_with_another_factor_is_the_same_bug():
    other = finding("layers.3.norm", text="the value is 0.25 times the reference")

    assert ended(finding()).bug == ended(other, finding("head")).bug


@pytest.mark.parametrize(
    "other",
    [
        finding("layers.0.mlp"),
        finding(kind="activation"),
        finding(check="shape"),
        finding(pattern="partial sum"),
    ],
)
def test_a_failure_with_another_first_tensor_or_pattern_is_another_bug(other):
    assert ended(finding()).bug != ended(other).bug


def test_a_comparison_with_doubts_only_is_inconclusive_and_names_the_checks():
    ending = ended(doubt(), doubt("coverage:update"))

    assert (ending.end, ending.bug) == ("inconclusive", "")
    assert ending.reason == "inconclusive: moved, coverage:update"
    assert ended(doubt(), finding()).end == "fails"


def test_only_exceptions_that_the_program_names_are_refusals():
    refused = group(
        ("raised", "Unsupported", "no offload here"), ("raised", "Unsupported", "no offload here")
    )
    mixed = group(("raised", "Unsupported", "no"), ("raised", "ValueError", "4 is not 3"))

    assert ending_of(refused, {"Unsupported"}).end == "refused"
    assert "no offload here" in ending_of(refused, {"Unsupported"}).reason
    assert ending_of(refused, ()).end == "fails"
    assert ending_of(mixed, {"Unsupported"}).end == "fails"
    assert ending_of(group(("died", "Unsupported", ""), ("ok", "", "")), {"Unsupported"}).end == (
        "fails"
    )


def test_ranks_that_raise_the_same_with_other_numbers_are_the_same_bug():
    one = ending_of(group(("raised", "ValueError", "size 4 is not 8")), ())
    same = ending_of(group(("raised", "ValueError", "size 2 is not 16")), ())
    other = ending_of(group(("raised", "ValueError", "no such name")), ())

    assert one.bug == same.bug != other.bug


def test_assertions_at_other_lines_are_other_bugs():
    def raised(first):
        try:
            if first:
                raise AssertionError
            raise AssertionError
        except AssertionError as error:
            return ending_of(error, ()).bug

    assert raised(True) == raised(True)
    assert raised(True) != raised(False)
