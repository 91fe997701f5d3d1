"""The cause in the report of a flaky program."""

from __future__ import annotations

from typing import Any

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.fuzz.failures.flaky import cause_text
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.replay.determinism import judge
from pytest_trainsafe.launch import GroupFailure

#: Traces that the replaced judge does not read.
TRACES: Any = None
#: The judge by its module: a name would be looked up in modules that inner runs have imported.
JUDGE = judge, "judge_determinism"


def test_the_cause_is_the_finding_of_the_determinism_judge(monkeypatch):
    finding = Finding(
        verdict="fail",
        judge="replay",
        check="determinism:unseeded",
        message="differs on rank 0 in Run 2 of 2",
        where=TensorId(0, 0, "input", "", "input"),
        pattern=Pattern("determinism:unseeded", "", "", "a generator has another seed"),
    )
    monkeypatch.setattr(*JUDGE, lambda traces, repeats: FindingsJudgement("replay", [finding]))

    text = cause_text(TRACES)

    assert text.startswith(f"{finding.where}: differs on rank 0 in Run 2 of 2. a generator has")
    assert text.endswith("(determinism:unseeded)")


def test_repeated_runs_with_equal_bits_have_no_cause(monkeypatch):
    monkeypatch.setattr(*JUDGE, lambda traces, repeats: FindingsJudgement("replay", []))

    assert cause_text(TRACES) == ""


def test_a_failed_run_leaves_the_cause_unknown(monkeypatch):
    def fail(traces, repeats):
        raise GroupFailure.__new__(GroupFailure)

    monkeypatch.setattr(*JUDGE, fail)

    assert cause_text(TRACES).startswith("not known, because a Run failed")
