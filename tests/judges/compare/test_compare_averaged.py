"""For gradients that the reduction has yet to average, `propose` suggests a `mean` annotation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest
import torch

from pytest_trainsafe.core.layout import Layout, Partial, Scaled
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.declarations.propose import has_missing, propose
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.text.proposal import proposal_rows
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.traces import Bench, Edit, Record, training, write

BEFORE = ("activation_grad", "param_grad")


def times(factor: float, *kinds: str) -> Edit:
    """Multiplies the tensors of these kinds by a factor."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * factor if record.id.kind in kinds else part

    return edit


@pytest.mark.parametrize(
    ("point", "factor", "kinds", "wanted"),
    [
        (Point.of(dp=2), 2, BEFORE, {"gradients": {"mean": ["dp"]}}),
        (Point.of(tp=2, dp=2), 2, BEFORE, {"gradients": {"mean": ["dp"]}}),
        (Point.of(cp=2), 2, BEFORE, {"gradients": {"mean": ["cp"]}}),
        (Point.of(dp=2, cp=2), 4, BEFORE, {"gradients": {"mean": ["dp", "cp"]}}),
        (
            Point.of(dp=2),
            2,
            ("loss", *BEFORE),
            {"gradients": {"mean": ["dp"]}, "loss": {"mean": ["dp"]}},
        ),
    ],
    ids=["dp", "beside tp", "cp", "dp and cp", "with the loss"],
)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_mean_is_proposed_for_gradients_that_the_reduction_averages(
    bench: Bench,
    point: Point,
    factor: float,
    kinds: tuple[str, ...],
    wanted: dict[str, object],
    dtype: str,
) -> None:
    rung = bench.rung(point, times(factor, *kinds), dtype=dtype)
    comparison = compare(rung)
    assert has_missing(rung, comparison)
    found = propose(rung, comparison, ())
    assert found is not None
    assert (found.wanted, found.left, found.unexplained) == (wanted, None, "")
    assert found.tensors == comparison.wrong.total()


@pytest.mark.parametrize(
    ("point", "factor", "kinds"),
    [
        (Point.of(dp=2), 2, (*BEFORE, "main_grad")),
        (Point.of(dp=2), 3, BEFORE),
        (Point.of(dp=2), 2, ("param_grad",)),
        (Point.of(dp=2), 2, ("loss",)),
        (Point.of(dp=2), 2, (*BEFORE, "activation")),
        (Point.of(tp=2), 2, BEFORE),
    ],
    ids=[
        *("not averaged", "another factor", "some kinds", "the loss alone"),
        *("more than gradients", "over tp"),
    ],
)
def test_no_mean_is_proposed_if_it_would_leave_tensors_wrong(
    bench: Bench, point: Point, factor: float, kinds: tuple[str, ...]
) -> None:
    rung = bench.rung(point, times(factor, *kinds), dtype="float64")
    comparison = compare(rung)
    assert comparison.failed
    assert propose(rung, comparison, ()) is None


def clipped(
    bench: Bench, edit: Edit, factor: float = 0.5, norm: float | None = None, one: str = ""
) -> RungTraces:
    """A rung whose main gradients are multiplied by a factor, or those of one parameter only.

    `norm` is what the reference and the candidate report as the gradients' norm.
    """
    records = []
    for r in training():
        scaled = r.id.kind == "main_grad" and one in ("", r.id.path)
        if norm is not None and r.id.kind == "main_grad" and r.id.path == "norm.weight":
            id = TensorId(r.id.step, None, "grad_norm", "", "grad_norm")
            records.append(Record(id, torch.tensor(norm, dtype=torch.float64)))
        records.append(Record(r.id, r.tensor * factor if scaled else r.tensor, r.layout))
    reference = write(bench.path(), records)
    candidate = write(bench.path(), records, Point.of(dp=2), "float64", edit)
    return RungTraces("float64", candidate, reference, reference)


def norm_of_all() -> float:
    """The norm of the first step's main gradients, which are the sums of their terms."""
    gradients = [r.tensor for r in training() if r.id.kind == "main_grad" and r.id.step == 0]
    return float(torch.cat([gradient.flatten() for gradient in gradients]).norm())


def test_no_mean_is_proposed_if_clipping_hides_whether_the_reduction_averages(bench: Bench) -> None:
    """After clipping, a sum and a mean of gradients are the same; the proposal says so."""
    rung = clipped(bench, times(2, *BEFORE))
    comparison = compare(rung)
    assert comparison.failed
    found = propose(rung, comparison, ())
    assert found is not None
    assert found.wanted == {}
    assert found.unseen is not None
    assert found.headline == "perhaps the annotation `gradients: {mean: [dp]}` is missing"
    [(label, text, _)] = proposal_rows(found)
    assert label == "perhaps"
    assert "if they are means over dp, but all gradients are multiplied by 0.5" in text
    assert "if it does not, the loss is wrong" in text
    assert "report the gradient norm before clipping with ctx.before_clip(norm, limit)" in text


def test_the_norm_before_clipping_shows_that_the_reduction_averages(bench: Bench) -> None:
    rung = clipped(bench, times(2, *BEFORE), norm=norm_of_all())
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"gradients": {"mean": ["dp"]}}
    assert found.left is None


def test_a_norm_reported_after_clipping_does_not_show_a_mean(bench: Bench) -> None:
    rung = clipped(bench, times(2, *BEFORE), norm=norm_of_all() / 2)
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {}


def test_no_mean_is_proposed_if_the_reported_norm_is_wrong_too(bench: Bench) -> None:
    """The reduction sums instead of averaging: clipping hides it, but the norm shows it."""
    rung = clipped(bench, times(2, *BEFORE, "grad_norm"), norm=norm_of_all())
    comparison = compare(rung)
    assert comparison.wrong["grad_norm"]
    assert propose(rung, comparison, ()) is None


def test_no_mean_is_proposed_if_gradients_are_normalised_one_by_one(bench: Bench) -> None:
    rung = clipped(bench, times(2, *BEFORE), norm=norm_of_all(), one="fc1.weight")
    assert propose(rung, compare(rung), ()) is None


@pytest.mark.parametrize("wrapper", ["DistributedDataParallel", ""])
def test_removing_a_wrongly_declared_mean_is_proposed(bench: Bench, wrapper: str) -> None:
    """An annotation overrides the default of a wrapper; a wrong annotation is to be removed."""
    notes = [NoteEvent("averages", wrapper)] if wrapper else []
    rung = bench.rung(Point.of(dp=2), dtype="float64", notes=notes)
    rung = declared(rung, BEFORE, (Scaled("dp"),))
    comparison = compare(rung)
    assert comparison.failed
    found = propose(rung, comparison, ())
    assert found is not None
    assert found.left is None
    assert found.wanted == ({"gradients": {"mean": []}} if wrapper else {})
    text = proposal_rows(found)[-1][1]
    assert "before the reduction the gradients already equal those of the whole step" in text
    assert text.endswith("remove the annotation") is not bool(wrapper)


def test_a_declared_mean_is_not_blamed_for_a_wrong_reduction(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), times(0.5, "main_grad"), dtype="float64")
    rung = declared(rung, BEFORE, (Scaled("dp"),))
    assert propose(rung, compare(rung), ()) is None


def test_no_mean_is_proposed_while_some_tensors_are_suspects(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), times(2, *BEFORE), dtype="float64")
    comparison = compare(rung)
    comparison.suspects.append(next(rung.reference.ids()))
    assert not has_missing(rung, comparison)
    assert propose(rung, comparison, ()) is None


def test_a_proposed_mean_names_another_axis_of_the_same_size(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2, cp=2), times(2, *BEFORE), dtype="float64")
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"gradients": {"mean": ["dp"]}}
    text = proposal_rows(found)[-1][1]
    assert "The axis may also be cp, which has the same size here" in text


def declared(rung: RungTraces, kinds: Sequence[str], layout: Layout) -> RungTraces:
    """The rung with this layout declared for the candidate's tensors of these kinds."""
    trace = rung.candidate
    ranks = [
        dataclasses.replace(
            rank,
            tensors={
                id: msgspec.structs.replace(event, layout=layout) if id.kind in kinds else event
                for id, event in rank.tensors.items()
            },
        )
        for rank in trace.ranks
    ]
    return dataclasses.replace(rung, candidate=Trace(trace.path, trace.manifest, ranks))


def test_a_mean_loss_is_proposed_if_gradients_are_declared_means(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), times(2, "loss", *BEFORE), dtype="float64")
    rung = declared(rung, BEFORE, (Scaled("dp"),))
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"loss": {"mean": ["dp"]}}
    assert "the loss passed to ctx.loss is a mean over" in proposal_rows(found)[-1][1]


def test_no_mean_loss_is_proposed_if_clipping_hides_whether_the_reduction_averages(
    bench: Bench,
) -> None:
    """Gradients are declared means: the loss would be a mean too, if the reduction averages."""
    rung = declared(clipped(bench, times(2, "loss", *BEFORE)), BEFORE, (Scaled("dp"),))
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {}
    [(_, text, _)] = proposal_rows(found)
    assert text.startswith(
        "the losses match the reference if they are means over dp, but all gradients are multiplied"
    )


def test_a_gradient_mean_is_proposed_over_the_axis_of_a_declared_loss_mean(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "loss":
            return record.tensor.to(part.dtype)
        return part * 2 if record.id.kind in BEFORE else part

    rung = bench.rung(Point.of(dp=2, cp=2), edit, dtype="float64")
    rung = declared(rung, ("loss",), (Partial("cp", "avg"),))
    found = propose(rung, compare(rung), ())
    assert found is not None
    assert found.wanted == {"gradients": {"mean": ["cp"]}}


def test_the_report_explains_a_proposed_mean(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), times(2, *BEFORE), dtype="float64")
    found = propose(rung, compare(rung), ())
    assert found is not None
    rows = proposal_rows(found)
    assert [label for label, _, _ in rows] == ["annotate", "", "because", "which says"]
    assert rows[1][1] == "gradients: {mean: [dp]}"
    assert rows[3][1].startswith(
        "each rank's loss is a mean over the rank's own share of the batch, so its gradients are dp"
    )
