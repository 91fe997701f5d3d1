"""Inference gives the same result in several processes and when it is resumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from training_loops import HEALTHY, Plan, run_of

from pytest_trainsafe.judge.learn.check.offline import check
from pytest_trainsafe.judge.learn.columns.frame import Frame
from pytest_trainsafe.judge.learn.inference.learn import LearnError, learn
from pytest_trainsafe.judge.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judge.learn.packs.pack import pack_of
from pytest_trainsafe.judge.learn.registry import BUILT_IN, relations
from pytest_trainsafe.judge.learn.relation import Explanation
from pytest_trainsafe.judge.learn.relations.membership import Membership
from pytest_trainsafe.judge.learn.run import ObservedRun
from pytest_trainsafe.trace.observed.table import TableBuilder

RUNS = [run_of(plan) for plan in HEALTHY.values()]


class Own(Membership):
    """A relation of a project: what the package's own relation claims, under another name."""

    name = "own"

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        yield hypothesis("own", form="held")

    def explain(self, claim: Hypothesis) -> Explanation:
        return Explanation("the project's rule holds", "the project's reason")


def test_two_processes_learn_what_one_does() -> None:
    seen: list[tuple[int, int]] = []
    found = learn(RUNS[:1], jobs=2, progress=lambda done, every, name: seen.append((done, every)))
    assert found == learn(RUNS[:1])
    assert seen == [(count, len(BUILT_IN)) for count in range(1, len(BUILT_IN) + 1)]


def test_kept_results_are_taken_and_damaged_ones_made_again(
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


def test_other_runs_have_other_results(tmp_path: Path) -> None:
    learn(RUNS[:1], keep=tmp_path)
    learn(RUNS[1:2], keep=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * len(BUILT_IN)


def test_a_run_without_a_step_is_refused() -> None:
    with pytest.raises(LearnError, match="'empty' has no complete step"):
        learn([ObservedRun("empty", [TableBuilder().table()])])
    with pytest.raises(LearnError, match="no run to learn from"):
        learn([])


def test_a_table_without_calls_or_values_is_checked() -> None:
    """A process that observed nothing breaks no rule, and nothing is said to hold."""
    builder = TableBuilder()
    builder.step_ended(0)
    empty = ObservedRun("empty", [builder.table()])
    assert learn([empty]).invariants == ()
    pack = pack_of("x", learn(RUNS[:1]))
    found = check(empty, [pack], relations(), min_confidence=0)
    assert found.violations == ()
    assert found.triggered == {}


def test_a_relation_of_a_project_is_learned_and_checked() -> None:
    path = f"{__name__}:Own"
    found = learn([run_of(Plan("mlp"))], own=[path])
    [own] = [each for each in found.invariants if each.claim.relation == "own"]
    assert own.examples == 18
    every = relations([path])
    fault = run_of(Plan("mlp", fault="stale_optimizer"))
    broken = check(fault, [pack_of("x", found)], every, min_confidence=0).violations
    assert own.id in {each.invariant.id for each in broken}


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module:Rule", "cannot be imported"),
        (f"{__name__}:Path", "has no several and no typed and no valid"),
        ("pytest_trainsafe.judge.learn.relations.contain:Nothing", "cannot be imported"),
    ],
)
def test_a_path_without_a_relation_is_refused(path: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        relations([path])
