"""A result that depends on when a collective completes is named with both lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_schedule_independent
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.errors import ArgumentTypeError
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve
from tests.support.replay import schedule_programs

BENCHMARKS = Path(__file__).resolve().parents[4] / "benchmarks"

#: Of each kind of call one.
SAMPLE = (
    *("buckets of gradients", "batched send and receive", "two handles swapped"),
    *("wait after the optimizer", "input overwritten"),
)

Candidate = Callable[..., Traces]


@pytest.fixture
def candidate(tmp_path: Path) -> Any:
    """The fixture `candidate_trace` of a program at a Point, with arguments."""
    session = Session(Settings(device="cpu"), tmp_path)

    def make(program: Any, axes: dict[str, Any], **arguments: Any) -> Traces:
        point, found = Point.of(**axes), resolve(program)
        return session.candidate(Case(point, found, session.settings, arguments, arguments))

    yield make
    session.close()


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The programs of the benchmark."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import missing_waits

    return missing_waits


@pytest.mark.parametrize("case", SAMPLE)
def test_a_missing_wait_is_named_with_both_lines(
    case: str, candidate: Candidate, cases: Any
) -> None:
    """And its correct twin passes."""
    assert_schedule_independent(candidate(cases.train, {"dp": 2}, case=case))

    with pytest.raises(TrainsafeFailure) as caught:
        assert_schedule_independent(candidate(cases.train, {"dp": 2}, case=case, planted=True))

    finding = caught.value.findings[0]
    facts = dict(finding.evidence)
    issued, used = (int(str(facts[key]).rpartition(":")[2]) for key in ("issued", "used"))
    assert finding.check == cases.EXPECTED[case]
    assert issued in cases.lines(case, "issued")
    assert used in cases.lines(case, "used")
    assert f"missing_waits.py:{issued}" in str(caught.value)
    assert f"missing_waits.py:{used}" in str(caught.value)


def test_a_model_that_overlaps_its_reduction_passes(candidate: Candidate) -> None:
    """The reference GPT waits for each of its buckets."""
    axes = {"dp": 2, "zero": 1}
    traces = candidate(gpt.train, axes, overlap_grad_reduce=True, overlap_param_gather=True)

    assert_schedule_independent(traces)


def test_a_program_without_asynchronous_collectives_is_inconclusive(candidate: Candidate) -> None:
    """Unless that is accepted."""
    traces = candidate(gpt.train, {})

    with pytest.raises(TrainsafeFailure, match="schedule:nothing"):
        assert_schedule_independent(traces)
    assert_schedule_independent(traces, accept=["schedule:nothing"])


@pytest.mark.parametrize(
    ("how", "verdict", "check"),
    [
        ("recorded in flight", "inconclusive", "schedule:recorded"),
        ("any source", "fail", "schedule:order"),
        ("numpy", "fail", "schedule:order"),
    ],
)
def test_a_difference_that_no_early_use_explains_is_said_to_be_one(
    how: str, verdict: str, check: str, candidate: Candidate
) -> None:
    """The recorder itself read the output of a module in flight, which alone is no failure."""
    with pytest.raises(TrainsafeFailure) as caught:
        assert_schedule_independent(candidate(schedule_programs.train, {"dp": 4}, how=how))

    [finding] = caught.value.findings
    assert (finding.verdict, finding.check) == (verdict, check)


def test_what_is_no_fixture_is_refused() -> None:
    """Its Runs could not be repeated."""
    with pytest.raises(ArgumentTypeError, match="whose Run is repeated in two schedules"):
        assert_schedule_independent("a/trace")  # type: ignore[arg-type]
