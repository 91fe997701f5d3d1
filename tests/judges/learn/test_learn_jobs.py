"""Inference gives the same result in several processes and from kept results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.table import TableBuilder
from pytest_trainsafe.judges.learn.inference.learn import LearnError, learn
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.packs.pack import pack_of
from pytest_trainsafe.judges.learn.registry import BUILT_IN, relations
from pytest_trainsafe.judges.learn.relation import Explanation
from pytest_trainsafe.judges.learn.relations.membership import Membership
from pytest_trainsafe.judges.learn.run import ObservedRun
from tests.support.learn.training_loops import HEALTHY, Plan, run_of

RUNS = [run_of(plan) for plan in HEALTHY.values()]


class Own(Membership):
    """A relation of a project: the built-in Membership, under another name."""

    name = "own"

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        yield hypothesis("own", form="held")

    def explain(self, claim: Hypothesis) -> Explanation:
        return Explanation("the project's rule holds", "the project's reason")


def test_two_processes_learn_the_same_as_one_and_report_progress() -> None:
    seen: list[tuple[int, int]] = []
    found = learn(RUNS[:1], jobs=2, progress=lambda done, every, name: seen.append((done, every)))
    assert found == learn(RUNS[:1])
    assert seen == [(count, len(BUILT_IN)) for count in range(1, len(BUILT_IN) + 1)]


def test_kept_results_are_reused_and_a_damaged_one_is_computed_again(
    tmp_path: Path,
) -> None:
    learned = learn(RUNS[:1], keep=tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == len(BUILT_IN)
    files[0].write_text("{")
    before = {file: file.stat().st_mtime_ns for file in files}
    assert learn(RUNS[:1], keep=tmp_path) == learned
    changed = [file for file in files if file.stat().st_mtime_ns != before[file]]
    assert changed == files[:1]


def test_kept_results_of_different_runs_are_stored_separately(tmp_path: Path) -> None:
    learn(RUNS[:1], keep=tmp_path)
    learn(RUNS[1:2], keep=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * len(BUILT_IN)


def test_learning_refuses_a_run_without_a_step_and_an_empty_list_of_runs() -> None:
    with pytest.raises(LearnError, match="'empty' has no complete step"):
        learn([ObservedRun("empty", [TableBuilder().table()])])
    with pytest.raises(LearnError, match="no run to learn from"):
        learn([])


def test_a_run_without_observed_events_has_no_invariants_and_no_violations() -> None:
    """It triggers no rule either, so no rule is reported as checked."""
    builder = TableBuilder()
    builder.step_ended(0)
    empty = ObservedRun("empty", [builder.table()])
    assert learn([empty]).invariants == ()
    pack = pack_of("x", learn(RUNS[:1]))
    found = check(empty, [pack], relations(), min_confidence=0)
    assert found.violations == ()
    assert found.triggered == {}


def test_a_relation_defined_by_a_project_is_learned_and_checked() -> None:
    path = f"{__name__}:Own"
    found = learn([run_of(Plan("mlp"))], own=[path])
    [own] = [each for each in found.invariants if each.claim.relation == "own"]
    assert own.examples == 18
    every = relations([path])
    fault = run_of(Plan("mlp", fault="stale_optimizer"))
    broken = check(fault, [pack_of("x", found)], every, min_confidence=0).violations
    assert own.id in {each.invariant.id for each in broken}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:Rule", "cannot be imported"),
        (f"{__name__}:Path", "has no several and no typed and no named"),
        ("pytest_trainsafe.judges.learn.relations.contain:Nothing", "cannot be imported"),
    ],
)
def test_a_path_that_names_no_relation_is_refused(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        relations([path])
