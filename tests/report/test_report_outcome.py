"""Outcomes are made from the reports of pytest, with or without valid summaries."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.joint import JointJudgement, summary_of
from pytest_trainsafe.printable import printable
from pytest_trainsafe.report.rerun import NO_RUN
from pytest_trainsafe.report.run.families import families
from pytest_trainsafe.report.run.github import error_commands, job_summary
from pytest_trainsafe.report.run.outcome import outcomes, seconds_of, summaries
from pytest_trainsafe.report.run.summary import family_lines, table_lines, totals
from pytest_trainsafe.report.run.table import tables
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import Program

POINT = [("trainsafe_program", "gpt.train"), ("trainsafe_point", "tp=2 cp=1")]


def report(
    outcome: str = "passed",
    when: str = "call",
    properties: list[tuple[str, object]] | None = None,
    nodeid: str = "tests/test_a.py::t[tp2-cp1]",
    text: str = "",
    duration: float = 1.0,
) -> Any:
    return SimpleNamespace(
        nodeid=nodeid,
        when=when,
        outcome=outcome,
        keywords={"trainsafe": 1},
        user_properties=[*POINT, *(properties or [])],
        location=("tests/test_a.py", 6, "t"),
        duration=duration,
        longrepr=text,
        longreprtext=text,
    )


def summary(**values: object) -> tuple[str, object]:
    return "trainsafe", json.dumps({"point": "tp=2 cp=1", "verdict": "pass", **values})


def test_a_failed_test_without_a_verdict_is_an_error_with_its_first_line() -> None:
    reports = [report(when="setup"), report("failed", text="\nrank 1 died\nmore")]

    (outcome,) = outcomes(reports)

    assert (outcome.verdict, outcome.failed, outcome.point) == ("error", True, "tp=2 cp=1")
    assert outcome.axes == (("tp", "2"), ("cp", "1"))
    assert outcome.reason == "rank 1 died"
    assert outcome.location == "tests/test_a.py:7"
    text = "file test_a.py, line 7\n  def t(a):\nE       fixture 'a' not found\n"
    unknown = report("failed", text=text)
    assert outcomes([unknown])[0].reason == "fixture 'a' not found"
    assert seconds_of(reports) == {outcome.nodeid: 2.0}


def test_a_passing_point_in_a_failing_test_is_an_error_with_its_figures() -> None:
    rung = {"dtype": "float64", "tensors": 3, "worst": 0.5, "worst_name": "w"}
    (outcome,) = outcomes([report("failed", properties=[summary(rungs=[rung])], text="other")])

    assert (outcome.verdict, outcome.worst, outcome.tensors) == ("error", 0.5, (3,))
    assert len(families([outcome])) == 1


def test_an_assertion_that_compares_nothing_gives_the_point_its_worse_verdict() -> None:
    rung = {"dtype": "float64", "tensors": 3, "worst": 0.5, "worst_name": "w"}
    compared = summary(rungs=[rung])
    waits = {"judge": "schedules", "check": "wait", "where": "all_reduce", "pattern": ""}
    failing = summary(verdict="fail", first=waits)

    (alone,) = outcomes([report("failed", properties=[failing])])
    (both,) = outcomes([report("failed", properties=[compared, failing])])
    (passed,) = outcomes([report(properties=[compared, summary()])])

    assert (alone.verdict, alone.first.where, alone.tensors) == ("fail", "all_reduce", ())
    assert (both.verdict, both.first.where, both.tensors) == ("fail", "all_reduce", (3,))
    assert (passed.verdict, passed.tensors) == ("pass", (3,))


def test_a_failing_verdict_in_a_passing_test_is_in_no_family() -> None:
    found = outcomes([report(properties=[summary(verdict="fail")])])

    assert [outcome.verdict for outcome in found] == ["fail"]
    assert families(found) == []


def test_a_skipped_point_has_a_reason_and_no_seconds() -> None:
    reports = [report("skipped", "setup", [summary(verdict="skipped", reason="sp needs tp > 1")])]

    assert seconds_of(reports) == {}
    assert [outcome.reason for outcome in outcomes(reports)] == ["sp needs tp > 1"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = ("rungs", "seconds", "axes", "first", "look_at", "reason", "notes", "references", "point")


@given(
    st.sampled_from(("pass", "fail", "inconclusive", "skipped", "other", 3)),
    st.dictionaries(st.sampled_from(FIELDS), ANYTHING),
)
def test_any_recorded_property_is_rendered_as_printable_lines(
    verdict: object, values: dict[str, object]
) -> None:
    from pathlib import Path

    reports = [report("failed", properties=[summary(**{**values, "verdict": verdict})], text="x")]

    found = outcomes(reports)
    causes = families(found)
    lines = [
        *table_lines(tables(found), detailed=True),
        *family_lines(causes, NO_RUN, detailed=True),
        *totals([each for _, each in summaries(reports)], found),
    ]
    commands = error_commands(causes, Path("/w"), Path("/w"))

    assert found
    assert all(printable(line).isprintable() for line in lines)
    assert all(line.isprintable() for line in commands)
    assert job_summary(found, causes, Path("/w")).startswith("## trainsafe: ")


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"verdict": "pass"' + "[" * 10_000])
def test_an_invalid_summary_property_is_ignored(text: str) -> None:
    assert outcomes([report(properties=[("trainsafe", text)])]) == []
    assert summaries([report(properties=[("trainsafe", text)])]) == []


def test_an_infinite_error_is_shown() -> None:
    rung = {"dtype": "float64", "tensors": 3, "worst": math.inf, "worst_name": "w"}
    found = outcomes([report("failed", properties=[summary(verdict="fail", rungs=[rung])])])

    assert "  2   1   fail     inf            3        0.0" in table_lines(
        tables(found), detailed=False
    )


def test_the_programs_arguments_are_those_of_the_candidate_and_say_what_the_reference_has() -> None:
    case = Case(
        Point.of(tp=2),
        Program("fit:train"),
        Settings(),
        {"layers": 2, "rate": 0.1, "old": 1},
        {"layers": 2, "rate": 0.2, "tp_overlap": True},
    )
    made = summary_of(JointJudgement([FindingsJudgement("replay")]), case)
    (outcome,) = outcomes([report(properties=[("trainsafe", json.dumps(made))])])
    assert outcome.arguments == (
        "layers=2, rate=0.2 (in the reference 0.1), tp_overlap=True (not in the reference), "
        "no old (in the reference 1)"
    )
