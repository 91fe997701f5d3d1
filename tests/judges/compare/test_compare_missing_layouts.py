"""A report on missing layouts starts with them; consequences of missing layouts are not listed."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.layout import Placement
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.judgement import LadderJudgement
from pytest_trainsafe.judges.compare.ladder.pair import judge_pair
from pytest_trainsafe.judges.compare.ladder.summary import point_summary
from pytest_trainsafe.judges.compare.text.message import message_of
from tests.support.compare.traces import Bench, Edit, Record, healthy
from tests.support.compare.undeclared_layouts import undeclared


def judged(bench: Bench, edit: Edit = healthy, *, declared: bool = False) -> LadderJudgement:
    """The judgement of a candidate at tp=2 whose layouts are not declared, unless `declared`."""

    def keep(id: TensorId, placement: Placement) -> bool:
        return declared

    rung = undeclared(bench.rung(Point.of(tp=2), edit, dtype="float64"), keep)
    return judge_pair(rung.candidate, rung.reference, rung.perturbed, rung.shadow, (), ())


def labels(report: str) -> list[str]:
    """The labels of a report's rows, in order, each once."""
    _, _, body = report.partition("\n\n")
    rows = (line[2:16].strip() for line in body.splitlines())
    return list(dict.fromkeys(label for label in rows if label))


def test_if_layouts_explain_everything_the_report_has_only_them(bench: Bench) -> None:
    judgement = judged(bench)
    report = message_of(judgement)
    head = report.splitlines()[0]
    assert head == (
        "trainsafe: model.train at tp=2: layouts are missing for 3 parameters and 1 module"
    )
    assert labels(report) == ["annotate", "because", "compared"]
    assert "fc1.weight: {tp_dim: 0}" in report
    assert "had no effect" not in report
    assert judgement.verdict == "fail"


def test_the_summary_of_missing_layouts_names_no_tensor_and_no_line(bench: Bench) -> None:
    first = point_summary(judged(bench), {})["first"]
    assert first["message"] == "layouts are missing for 3 parameters and 1 module"
    assert (first["check"], first["where"], first.get("source", "")) == ("annotations", "", "")
    assert "--trainsafe-annotate" in first["cause"]


def filled_as_whole(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 0 + 1 if record.id.kind == "param" and record.id.step == INITIAL else part


def test_parameters_filled_as_if_they_were_whole_are_a_missing_layout(bench: Bench) -> None:
    report = message_of(judged(bench, filled_as_whole))
    assert ": layouts are missing for 3 parameters" in report.splitlines()[0]
    assert labels(report) == ["annotate", "because", "compared"]


def doubled(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 3 if record.id.kind == "main_grad" and record.id.module == "fc2" else part


def test_what_missing_layouts_do_not_explain_follows_them(bench: Bench) -> None:
    judgement = judged(bench, doubled)
    report = message_of(judgement)
    flat = " ".join(report.split())
    assert "reference, and layouts are missing for 3 parameters and 1 module" in flat
    assert labels(report)[:3] == ["annotate", "because", "starts at"]
    assert "starts at fc2.weight · main_grad · step 0" in flat
    assert "the value is 3 times the reference" in flat
    assert "rows that no rank holds" not in flat
    assert "had no effect" not in flat
    message = point_summary(judgement, {})["first"]["message"]
    assert message.endswith("; fc2.weight · main_grad is wrong too")


def of_means(bench: Bench, *kinds: str) -> str:
    """The report on a candidate at dp=2 whose tensors of these kinds are twice the reference's."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * 2 if record.id.kind in kinds else part

    rung = bench.rung(Point.of(dp=2), edit, dtype="float64")
    return message_of(
        judge_pair(rung.candidate, rung.reference, rung.perturbed, rung.shadow, (), ())
    )


def test_an_undeclared_mean_is_reported_as_a_missing_annotation_not_a_missing_division(
    bench: Bench,
) -> None:
    report = of_means(bench, "loss", "activation_grad", "param_grad")
    flat = " ".join(report.split())
    assert (
        "model.train at dp=2: the annotations `gradients: {mean: [dp]}` and `loss: {mean: [dp]}` "
        "are missing annotate" in flat
    )
    assert labels(report) == ["annotate", "because", "which says", "compared"]
    assert "so a division by dp is missing" not in flat


def test_a_division_that_is_missing_after_the_reduction_leads_the_report(bench: Bench) -> None:
    report = of_means(bench, "loss", "activation_grad", "param_grad", "main_grad")
    assert "differs from its single-device reference" in report.splitlines()[0]
    assert "so a division by dp is missing" in " ".join(report.split())
    assert "annotate" not in labels(report)


def test_a_fault_of_a_program_with_all_layouts_is_reported_as_a_difference(bench: Bench) -> None:
    report = message_of(judged(bench, doubled, declared=True))
    assert "differs from its single-device reference" in report.splitlines()[0]
    assert labels(report)[0] == "starts at"
