"""The parts of a report: sizes of errors, counts, paths, quoted and long names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.finding import Finding, Mismatch, Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
from pytest_trainsafe.judges.compare.fault.clause import Clause, at, listed
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import Advice, LadderJudgement, RungJudgement
from pytest_trainsafe.judges.compare.text.message import failure_message, message_of
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import Program

WEIGHT = TensorId(0, None, "main_grad", "fc1", "weight")
OTHER = TensorId(0, None, "main_grad", "fc2", "weight")


def failure(where: TensorId = WEIGHT, **fields: object) -> Finding:
    given = {"verdict": "fail", "judge": "compare", "check": "norm", "message": "", "where": where}
    return Finding(**{**given, **fields})  # type: ignore[arg-type]


def report(*findings: Finding, node: str = "t.py::t", **compared: int) -> str:
    comparison = Comparison("float32", list(findings), compared=Counter(compared))
    entry = RungJudgement("float32", "float32", comparison, [], [])
    return failure_message("train", "tp=2", [entry], node)


@pytest.mark.parametrize(
    ("error", "allowed", "words"),
    [
        (2e-6, 1e-6, "error 2.0e-06, rounding allows 1.0e-06    (2 times too large)"),
        (2.34e-4, 1e-6, "(230 times too large)"),
        (1.0, 1e-6, "(1 000 000 times too large)"),
        (1.0, 1e-15, "(1e+15 times too large)"),
        (0.5, None, "error 5.0e-01"),
        (0.5, 0.0, "no rounding explains this"),
        (float("inf"), 1e-6, "no rounding explains this"),
    ],
)
def test_an_error_is_shown_as_a_multiple_of_the_allowed_rounding(
    error: float, allowed: float | None, words: str
) -> None:
    assert words in report(failure(error=error, allowed=allowed))


@pytest.mark.parametrize("cause", ["", "an all-reduce over tp is missing"])
def test_what_no_layout_explains_is_left_out_if_a_pattern_has_a_cause(cause: str) -> None:
    found = failure(pattern=Pattern("partial", "rank0 + rank1 equals it", cause=cause))
    entry = RungJudgement("float32", "float32", Comparison("float32", [found]), [], [])
    entry.advice = Advice(proposal=Proposal({}, 0, found, unexplained="fc1: no layout explains it"))
    text = failure_message("train", "tp=2", [entry], "t.py::t")
    assert ("no layout" in text) == (cause == "")


def test_not_affected_counts_each_wrong_tensor_once() -> None:
    """A parameter is judged by its update; a tensor may break several checks."""
    param = TensorId(0, None, "param", "fc1", "weight")
    update = TensorId(0, None, "update", "fc1", "weight")
    initial = TensorId(INITIAL, None, "param", "fc1", "weight")
    found = [
        failure(param, judge="align", check="replicas"),
        failure(update),
        failure(initial),
        failure(),
        failure(check="missing"),
    ]
    text = report(*found, param=4, update=8, main_grad=8, activation=10)
    line = " ".join(text.split())
    assert (
        "not affected 3 of 4 initial parameters, 10 of 10 forward activations, 7 of 8 main "
        "gradients, 7 of 8 updates"
    ) in line


def test_a_replica_finding_follows_a_numerical_error_and_leads_if_it_is_alone() -> None:
    replicas = failure(judge="align", check="replicas", message="replicas differ")
    plain = failure(error=1.0, allowed=1e-6)
    explained = failure(
        judge="align",
        check="replicas",
        message="replicas differ",
        pattern=Pattern("stale", "on tp rank 1: the value is old", cause="it is not refreshed"),
    )
    assert "  also          replicas differ" in report(replicas, plain)
    alone = report(explained)
    assert "  detail        replicas differ" in alone
    assert "  pattern       on tp rank 1: the value is old" in alone
    assert "  so            it is not refreshed" in alone


def test_many_findings_of_one_tensor_are_truncated() -> None:
    found = [failure(judge="align", check="hole", message=f"hole {n}") for n in range(8)]
    text = report(*found)
    assert text.count("  also") == 4
    assert "and 3 more" in text


def test_paths_are_relative_where_that_is_shorter(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    inside = report(failure(source=f"{tmp_path}/a/b/model.py:3", module_class="Norm"))
    assert "  look at       model.py:3 (module class Norm)" in inside
    assert "/x.py:3 (module class Norm)" in report(failure(source="/x.py:3", module_class="Norm"))


def test_each_further_place_to_look_at_has_a_line_of_its_own() -> None:
    entry = RungJudgement("float32", "float32", Comparison("float32", [failure()]), [], [])
    what = (
        *(Clause("module class Norm"), at("norm is set up", "/a.py:3")),
        listed("its forward runs", [("Sum.forward", "/b.py:7")]),
    )
    text = failure_message("p", "tp=2", [entry], "", located=Located((), "/x.py:3", what))
    assert (
        "  look at       /x.py:3 (module class Norm)\n"
        "                norm is set up at /a.py:3\n"
        "                its forward runs Sum.forward at /b.py:7\n"
    ) in text


def test_node_ids_are_quoted_for_a_shell_and_never_wrapped() -> None:
    node = "tests/" + "long-directory/" * 8 + "test_gpt.py::test[tp2-sp-float32]"
    assert f"\n  rerun         pytest '{node}'" in report(failure(), node=node)
    assert """rerun         pytest 't.py::t[it'"'"'s]'""" in report(failure(), node="t.py::t[it's]")


def test_long_names_are_never_wrapped() -> None:
    module = "model." + "transformer_block." * 8 + "attention-norm"
    where = TensorId(3, 12, "activation_grad", module, "output.logits", call=2)
    text = report(failure(where, message="a detail with a-hyphen " * 9))
    assert f"{module}.output.logits" in text
    assert "step 3 · micro-batch 12 · call 2" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= len(module) + 40
    assert "a-hyphen" in text
    assert not any(line.endswith("a-") for line in text.splitlines())


def test_long_headline_wraps() -> None:
    comparison = Comparison("float32", [failure()])
    entry = RungJudgement("float32", "float32", comparison, [], [])
    point = " ".join(f"axis{n}={n}" for n in range(14))
    lines = failure_message("package.module.train", point, [entry], "").splitlines()
    assert len(lines[0]) <= 100
    assert lines[1].startswith("  ")
    assert lines[2] == ""


def test_differing_elements_are_shown_only_for_the_first_wrong_tensor() -> None:
    mismatch = Mismatch(
        elements=8,
        differing=3,
        threshold=1e-9,
        difference=0.25,
        index=(1, 2),
        value=1.5,
        expected=1.25,
    )
    other = failure(mismatch=mismatch)
    text = " ".join(report(other, failure(OTHER, mismatch=mismatch)).split())

    assert text.count("elements") == 1
    assert (
        "elements 3 of 8 (37.5 %) differ by more than 1.0e-09; the greatest absolute difference is "
        "2.5e-01, at index (1, 2): 1.5 instead of 1.25" in text
    )
    assert "elements" not in report(failure())


def test_the_rerun_command_contains_the_words_of_the_command_line_that_it_needs() -> None:
    comparison = Comparison("float32", [failure()])
    case = Case(
        Point.of(tp=2), Program("m:train"), Settings(rerun=" --trainsafe-seed 3"), nodeid="t.py::t"
    )
    judged = RungJudgement("float32", "float32", comparison, [], [])

    text = message_of(LadderJudgement("train", "tp=2", [judged], case))

    assert "rerun         pytest t.py::t --trainsafe-seed 3" in text
