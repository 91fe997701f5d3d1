"""An annotation that matches nothing comes first, and hides no fault of the program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.layout import Placement
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.judgement import LadderJudgement
from pytest_trainsafe.judges.compare.ladder.pair import judge_pair
from pytest_trainsafe.judges.compare.ladder.summary import point_summary
from pytest_trainsafe.judges.compare.text.first_line import first_line
from pytest_trainsafe.judges.compare.text.message import message_of
from pytest_trainsafe.judges.compare.unmatched import may_follow, meant
from pytest_trainsafe.trace.facts import Annotations, Site
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.traces import Bench, Edit, Record, healthy
from tests.support.compare.undeclared_layouts import terms, undeclared, without_gradient


def judged(
    bench: Bench,
    entry: str,
    *,
    lacking: tuple[str, ...] = (),
    edit: Edit = healthy,
    tp: int = 2,
    facts: tuple[object, ...] = (),
) -> LadderJudgement:
    """The judgement if an entry matches nothing, and the tensors of some paths have no layout."""

    def keep(id: TensorId, placement: Placement) -> bool:
        return id.path not in lacking

    notes = [NoteEvent("unmatched_annotation", entry), *facts]
    rung = undeclared(bench.rung(Point.of(tp=tp), edit, dtype="float64", notes=notes), keep)
    return judge_pair(rung.candidate, rung.reference, rung.perturbed, rung.shadow, (), ())


def flat(judgement: LadderJudgement) -> str:
    return " ".join(message_of(judgement).split())


def test_the_headline_says_what_matches_nothing_where_nothing_differs(bench: Bench) -> None:
    judgement = judged(bench, "modules: nrom", tp=1)
    report = flat(judgement)
    said = "the annotation `modules: nrom` matches nothing"
    assert report.startswith(
        f"trainsafe: model.train at tp=1: {said} what {said} in the model; did you "
    )
    assert "differs" not in report
    assert first_line(judgement).startswith(f"{said} in the model; did you mean 'norm'?")
    assert judgement.verdict == "fail"


@pytest.mark.parametrize(
    ("entry", "then"),
    [
        ("modules: nrom", "did you mean 'norm'? If so, correct it"),
        ("modules: head", "correct its pattern (fnmatch"),
        ("parameters: fcl.bias", "did you mean 'fc1.bias'? If so, correct or remove it"),
    ],
)
def test_the_advice_fits_what_is_near(bench: Bench, entry: str, then: str) -> None:
    start = f"the annotation `{entry}` matches nothing in the model; {then}"
    (finding,) = judged(bench, entry).findings
    assert finding.message.startswith(start)
    assert finding.source == ""


def test_the_line_is_that_of_the_entry_in_its_file_or_of_the_call_that_gives_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "layouts.yaml"
    path.write_text("modules:\n  head: {}\n")
    report = message_of(judged(bench, "modules: head", facts=(Annotations(str(path)),)))
    assert "  look at       layouts.yaml:2 (the entry)" in report

    watched = Annotations(given=True), Site("watch", "train.py:7")
    report = message_of(judged(bench, "modules: head", facts=watched))
    assert "  look at       train.py:7 (gives it)" in report


@pytest.mark.parametrize(
    ("pattern", "spelled"),
    [
        ("fcl.weight", "fc1.weight"),
        ("f*.wieght", "f*.weight"),
        ("fcl.*", "fc1.*"),
        ("#.fcl.weight", "fc1.weight"),
    ],
)
def test_what_a_misspelt_entry_was_meant_for_is_not_to_be_added(
    bench: Bench, pattern: str, spelled: str
) -> None:
    entry = f"parameters: {pattern}"
    judgement = judged(bench, entry, lacking=("fc1.weight",))
    report = flat(judgement)
    assert f": the annotation `{entry}` matches nothing what" in report
    assert f"did you mean '{spelled}'? If so, correct it" in report
    assert "1 parameter has no layout; with the one that fits the values, every" in report
    for wrong in ("annotate", "layouts are missing", "differs", "starts at"):
        assert wrong not in report, report
    assert judgement.rungs[-1].explained

    judgement = judged(bench, entry, lacking=("fc1.weight", "fc1.output"))
    report = flat(judgement)
    assert f"the annotation `{entry}` matches nothing, and layouts are missing for 1 mod" in report
    assert report.index("1 parameter has no layout") < report.index("fc1: {output: {tp_dim: -1}}")
    assert "fc1.weight: {tp_dim" not in report


def filled_as_whole(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 0 + 1 if record.id.path == "fc1.weight" and record.id.kind == "param" else part


def test_shards_filled_as_if_they_were_whole_follow_from_the_misspelt_entry(bench: Bench) -> None:
    judgement = judged(
        bench, "parameters: fcl.weight", lacking=("fc1.weight",), edit=filled_as_whole
    )
    report = flat(judgement)
    assert "1 parameter has no layout, so ctx.initialize filled each shard as if it were" in report
    assert "annotate" not in report
    assert judgement.rungs[-1].explained


def test_names_that_are_equally_near_are_all_named(bench: Bench) -> None:
    names = ("fc1.weight", "fc2.weight")
    judgement = judged(bench, "parameters: fc.weight", lacking=names)
    report = flat(judgement)
    assert "did you mean 'fc1.weight' or 'fc2.weight'? If so, correct it" in report
    assert "2 parameters have no layout" in report
    assert "annotate" not in report


def wrong_reduction(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 3 if record.id.kind == "main_grad" and record.id.module == "fc2" else part


@pytest.mark.parametrize("lacking", [(), ("fc1.weight",)])
def test_a_fault_of_the_program_is_reported_after_the_misspelt_entry(
    bench: Bench, lacking: tuple[str, ...]
) -> None:
    judgement = judged(bench, "parameters: fcl.weight", lacking=lacking, edit=wrong_reduction)
    report = flat(judgement)
    assert report.startswith("trainsafe: model.train at tp=2 differs from its single-device refer")
    assert ", and the annotation `parameters: fcl.weight` matches nothing what the anno" in report
    assert "starts at fc2.weight · main_grad · step 0" in report
    assert "the value is 3 times the reference" in report
    assert "; also fc2.weight · main_grad: " in first_line(judgement)
    first = point_summary(judgement, {})["first"]
    assert first["check"] == "annotation"
    assert first["message"].endswith("; fc2.weight · main_grad is wrong too")
    assert not judgement.rungs[-1].explained


def test_a_sum_that_may_be_a_missing_reduction_is_not_put_down_to_a_misspelt_entry(
    bench: Bench,
) -> None:
    notes = [NoteEvent("unmatched_annotation", "modules: fc")]
    rung = bench.rung(
        Point.of(tp=2), terms("activation", "fc2", "tp"), dtype="float64", notes=notes
    )
    rung = without_gradient(undeclared(rung, lambda id, _: id.path != "fc2.output"), "fc2")
    assert ("modules", "fc2") in meant(rung.candidate)

    traces = rung.candidate, rung.reference, rung.perturbed, rung.shadow
    report = flat(judge_pair(*traces, (), ()))

    assert "did you mean 'fc1' or 'fc2'?" in report
    assert "layouts are missing for 1 module, or a reduction is" in report


@pytest.mark.parametrize(
    ("entry", "kind", "path", "tp", "expected"),
    [
        ("parameters: fcl.weight", "main_grad", "fc1.weight", 2, True),
        ("parameters: fcl.weight", "optimizer_state", "fc1.weight.exp_avg", 2, True),
        ("parameters: fcl.weight", "main_grad", "fc1.bias", 2, False),
        ("parameters: fcl.weight", "main_grad", "fc1.weight", 1, False),
        ("modules: nrom", "activation", "norm.output", 2, True),
        ("modules: nrom", "main_grad", "norm.weight", 2, False),
    ],
)
def test_only_what_the_entry_was_meant_for_may_follow_from_it(
    bench: Bench, entry: str, kind: str, path: str, tp: int, expected: bool
) -> None:
    notes = [NoteEvent("unmatched_annotation", entry)]
    rung = bench.rung(Point.of(tp=tp), dtype="float64", notes=notes)
    rung = undeclared(rung, lambda id, placement: False)
    module, _, name = path.partition(".")
    where = TensorId(0, None, kind, module, name)  # type: ignore[arg-type]
    assert may_follow(rung.candidate, where) is expected
