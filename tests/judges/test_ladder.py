"""The ladder judges rungs from the widest dtype down, and stops at the first failure."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.judges.compare.ladder.ladder import climb
from pytest_trainsafe.judges.compare.ladder.runs import make_rung
from pytest_trainsafe.judges.compare.text.message import message_of
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.launch import GroupFailure, GroupResult, RankResult
from pytest_trainsafe.runs.requested import RequestedRuns
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from tests.support.compare.ladder_runs import POINT, Runs
from tests.support.compare.traces import Bench, Edit, healthy, only

RUNGS = ("float64", "float32", "bfloat16")

#: The order of requests: the next test's Runs are launched before the last rung is awaited.
ASKED = [*RUNGS[:-1], "ahead", RUNGS[-1]]

twice = only("main_grad", "norm.weight", lambda r, at, p: 2 * p)


def climbed(
    bench: Bench,
    edits: dict[str, Edit],
    accept: tuple[str, ...] = (),
    loosen: tuple[Loosen, ...] = (),
    **options: object,
) -> tuple[str, Runs, PointSummary]:
    """Climb a ladder whose candidates have these faults by dtype."""
    found = {
        dtype: bench.rung(POINT, edits.get(dtype, healthy), dtype, **options).candidate  # type: ignore[arg-type]
        for dtype in RUNGS
    }
    candidate: Any = Runs(bench, found, accept)
    reference: Any = Runs(bench, {}, ())
    judgement = climb(candidate, reference, loosen, ())
    return message_of(judgement), candidate, judgement.summary


def test_a_clean_candidate_passes_every_rung_and_its_summary_has_them(bench: Bench) -> None:
    report, candidate, summary = climbed(bench, {})
    assert report == ""
    assert candidate.asked == ASKED
    assert (summary["verdict"], summary["point"]) == ("pass", "tp=2 dp=2")
    assert [rung["dtype"] for rung in summary["rungs"]] == list(RUNGS)
    assert all(rung["tensors"] == 116 for rung in summary["rungs"])
    assert all(0 < rung["worst"] < 1 and rung["worst_name"] for rung in summary["rungs"])
    assert summary["seconds"]["launch"] == 1.235
    assert summary["seconds"]["compare"] > 0


def test_the_next_tests_runs_are_launched_before_the_run_with_noise_has_ended(bench: Bench) -> None:
    made: list[str] = []

    class Logging(Runs):
        def prefetch_perturbed(self, dtype: str, samples: Any) -> None:
            made.append(f"noise launched in {dtype}")

        def perturbed(self, dtype: str, sample: int = 0) -> Trace:
            made.append("noise awaited")
            return super().perturbed(dtype, sample)

    candidate: Any = Runs(bench, {"float64": bench.rung(POINT, healthy, "float64").candidate}, ())
    reference: Any = Logging(bench, {}, ())
    rung = make_rung("float64", candidate, reference, False, lambda: made.append("next test"))

    assert made == ["noise launched in float64", "next test", "noise awaited"]
    assert rung.perturbed is not None


def test_the_noise_of_later_rungs_trains_after_that_of_the_first_rung(bench: Bench) -> None:
    made: list[str] = []

    class Logging(Runs):
        def prefetch(self, dtype: str, *, noise: bool = True) -> None:
            if noise and f"noise of {dtype}" not in made and dtype != RUNGS[0]:
                made.append(f"noise of {dtype}")

        def prefetch_perturbed(self, dtype: str, samples: Any) -> None:
            if f"noise of {dtype}" not in made:
                made.append(f"noise of {dtype}")

    found = {dtype: bench.rung(POINT, healthy, dtype).candidate for dtype in RUNGS}
    candidate: Any = Runs(bench, found, ())
    reference: Any = Logging(bench, {}, ())
    climb(candidate, reference, (), ())

    assert made == [f"noise of {dtype}" for dtype in RUNGS]


def test_no_rung_is_judged_after_the_first_failing_one(bench: Bench) -> None:
    report, candidate, summary = climbed(bench, {"float32": twice, "bfloat16": twice})
    assert candidate.asked == ["float64", "float32"]
    assert "starts at     norm.weight · main_grad · step 0 · float32" in report
    assert "compared      116 tensors in float64," in report
    assert "rerun         pytest 'test_model.py::test_model[tp2-dp2]'" in report
    assert summary["verdict"] == "fail"
    assert "reason" not in summary


def test_an_inconclusive_rung_does_not_stop_the_ladder(bench: Bench) -> None:
    same: dict[str, Any] = {"inputs": lambda at, index: index % 2}
    report, candidate, summary = climbed(bench, {"bfloat16": twice}, **same)
    assert candidate.asked == ASKED
    assert "differs from its single-device reference" in report
    assert summary["verdict"] == "fail"


def test_a_ladder_without_failures_reports_every_inconclusive_dtype(bench: Bench) -> None:
    same: dict[str, Any] = {"inputs": lambda at, index: index % 2}
    report, _, summary = climbed(bench, {}, **same)
    assert "(dp-inputs; float64, float32, bfloat16)" in " ".join(report.split())
    assert summary["verdict"] == "inconclusive"
    assert "saw the same data" in summary["reason"]


def test_a_check_accepted_in_the_settings_passes(bench: Bench) -> None:
    same: dict[str, Any] = {"inputs": lambda at, index: index % 2}
    report, _, summary = climbed(bench, {}, accept=("dp-inputs",), **same)
    assert (report, summary["verdict"]) == ("", "pass")


def test_a_fault_in_bfloat16_alone_fails_that_rung(bench: Bench) -> None:
    """The candidate is right in float64 and float32, and wrong in bfloat16."""
    fault = only("activation", "fc2.output", lambda r, at, p: p * 1.25)
    report, candidate, _ = climbed(bench, {"bfloat16": fault})
    assert candidate.asked == ASKED
    assert "fc2.output · activation · step 0 · micro-batch 0 · bfloat16" in report
    assert "the value is 1.25 times the reference" in report


def test_an_unknown_check_in_the_settings_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match=r"accept takes some of .*, not 'typo'"):
        climbed(bench, {}, accept=("typo",))


def failure(text: str, status: Any = "raised") -> GroupFailure:
    """The failure of a group of two ranks, of which the first ended with this status."""
    ranks = [
        RankResult(
            rank=rank,
            status=status if rank == 0 else "stopped",
            folder=Path(),
            error_type="TypeError",
            error=text,
        )
        for rank in range(2)
    ]
    result = GroupResult(
        task="t", folder=Path(), ranks=tuple(ranks), seconds=1.0, timeout=9.0, first_failed=0
    )
    return GroupFailure(result)


class Breaking(Runs):
    """A candidate whose Runs fail in some dtypes; `again` is whether a repeated Run fails too."""

    def __init__(
        self, bench: Bench, broken: dict[str, GroupFailure], again: bool, edit: Edit = healthy
    ) -> None:
        found = {dtype: bench.rung(POINT, edit, dtype).candidate for dtype in RUNGS}
        super().__init__(bench, found, ())
        self.broken, self.again = broken, again
        self.repeated: list[str] = []
        self.case.settings = Settings(localize=0)
        self.case.dtype = "bfloat16"

    def at(self, dtype: str) -> Trace:
        if dtype in self.broken:
            raise self.broken[dtype]
        return super().at(dtype)

    def ended_in(self, dtype: str, failure: BaseException) -> bool:
        return self.broken.get(dtype) is failure

    def fails_again(self, dtype: str, failure: GroupFailure) -> bool:
        self.repeated.append(dtype)
        return self.again


def climb_breaking(
    bench: Bench, broken: dict[str, GroupFailure], again: bool = True, edit: Edit = healthy
) -> tuple[str, Breaking]:
    candidate = Breaking(bench, broken, again, edit)
    either: Any = candidate
    reference: Any = Runs(bench, {}, ())
    judgement = climb(either, reference, (), ())
    candidate.summary = judgement.summary
    return message_of(judgement), candidate


def test_float64_is_skipped_if_the_candidate_cannot_run_in_it(bench: Bench) -> None:
    report, candidate = climb_breaking(bench, {"float64": failure("no kernel")})

    assert report == ""
    summary = candidate.summary
    assert [rung["dtype"] for rung in summary["rungs"]] == ["float32", "bfloat16"]
    note = "float64 was skipped: the candidate cannot run in it"
    assert summary["notes"] == [f"{note} (rank 0 of 2 raised TypeError: no kernel)"]
    assert candidate.repeated == ["float64"]


def test_a_failure_after_a_skipped_rung_is_reported_with_the_skipped_rung(bench: Bench) -> None:
    report, candidate = climb_breaking(bench, {"float64": failure("no kernel")}, edit=twice)

    assert "norm.weight · main_grad · step 0 · float32" in report
    assert "float64 was skipped" in " ".join(report.split())
    assert candidate.repeated == []  # the test fails in any case


def test_a_run_failure_in_two_rungs_is_raised(bench: Bench) -> None:
    broken = {dtype: failure(f"broken for {dtype}") for dtype in ("float64", "float32")}
    with pytest.raises(GroupFailure, match="broken for float32"):
        climb_breaking(bench, broken)


def test_an_error_that_two_rungs_share_is_reported_for_the_first_of_them(bench: Bench) -> None:
    broken = {dtype: failure("no such file") for dtype in RUNGS}
    with pytest.raises(GroupFailure) as caught:
        climb_breaking(bench, broken)
    assert caught.value is broken["float64"]


class BrokenReference(Runs):
    """A reference whose Runs fail."""

    failed: dict[str, GroupFailure]

    def at(self, dtype: str) -> Trace:
        self.asked.append(dtype)
        raise self.failed[dtype]


@pytest.mark.parametrize(
    ("status", "asked"), [("raised", ["float64", "float32"]), ("hung", ["float64"])]
)
def test_an_error_of_the_reference_is_reported_for_the_dtype_that_ran_first(
    bench: Bench, status: str, asked: list[str]
) -> None:
    """A hang is no property of a dtype, so no other one is tried."""
    candidate: Any = Breaking(bench, {}, again=True)
    reference: Any = BrokenReference(bench, {}, ())
    reference.failed = {dtype: failure("no such file", status) for dtype in RUNGS}
    with pytest.raises(GroupFailure) as caught:
        climb(candidate, reference, (), ())
    assert caught.value is reference.failed["float64"]
    assert reference.asked == asked


@pytest.mark.parametrize("status", ["died", "hung"])
def test_ranks_that_die_or_hang_in_float64_fail_the_test(bench: Bench, status: str) -> None:
    broken = {"float64": failure("", status)}
    with pytest.raises(GroupFailure) as caught:
        climb_breaking(bench, broken)
    assert caught.value is broken["float64"]


def test_a_float64_failure_that_does_not_repeat_is_raised(bench: Bench) -> None:
    broken = {"float64": failure("a race was lost")}
    with pytest.raises(GroupFailure, match="a race was lost"):
        climb_breaking(bench, broken, again=False)


@pytest.mark.parametrize(
    ("second", "again"),
    [(failure("no kernel"), True), (failure("another"), False), (None, False)],
)
def test_a_repeated_run_fails_again_only_if_it_raises_the_same_error(
    second: GroupFailure | None, again: bool
) -> None:
    asked: list[int] = []

    def run(spec: RunSpec) -> Future[object]:
        asked.append(spec.repeat)
        done: Future[object] = Future()
        done.set_exception(second) if second is not None else done.set_result(None)
        return done

    scheduler: Any = SimpleNamespace(run=run)
    case = Case(POINT, Program("model:train"), Settings())
    traces = Traces(case, "candidate", RequestedRuns(scheduler, lambda: None), "full")

    assert traces.fails_again("float64", failure("no kernel")) is again
    assert asked == [1]
