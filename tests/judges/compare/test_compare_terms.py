"""Terms of an activation's gradient pass if all that is computed from them is right."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.not_compared import not_compared
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.clipped_traces import both
from tests.support.compare.traces import Bench, Edit, Record, only, training

CP = Point.of(cp=2)
MINE = (("fc2", "activation"), ("fc2", "activation_grad"))


def whole(dtype: str) -> list[Record]:
    """A training whose output fc2 is not cut over cp."""
    return [
        dataclasses.replace(r, layout=())
        if r.id.module == "fc2" and "activation" in r.id.kind
        else r
        for r in training(dtype, rung_named(dtype).epsilon / 8, 3)
    ]


def times(factor: float) -> Edit:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return factor * part

    return edit


HALVES = only("activation_grad", "fc2.output", times(0.5))


def first(
    bench: Bench, edit: Edit, dtype: str = "float32", point: Point = CP, **more: object
) -> str:
    """The first wrong tensor, or the note on terms; "" if neither is there."""
    rung = bench.rung(point, edit, dtype, whole(dtype), **more)
    comparison = compare(rung)
    failing = [f.where for f in comparison.findings if f.verdict == "fail"]
    if failing:
        assert failing[0] is not None
        return f"{failing[0].path} {failing[0].kind}"
    return " ".join(note for note in not_compared(rung, comparison) if "holds a term" in note)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_terms_pass_with_a_note_if_their_sum_is_the_references(bench: Bench, dtype: str) -> None:
    assert first(bench, HALVES, dtype=dtype) == (
        "each rank of cp holds a term of the gradient of fc2.output; the sum over cp equals "
        "the reference's, and so does all that is computed from it"
    )


@pytest.mark.parametrize("factor", [2.0, 0.25, 0.49, -0.5])
def test_another_factor_is_a_wrong_gradient(bench: Bench, factor: float) -> None:
    edit = only("activation_grad", "fc2.output", times(factor))
    assert first(bench, edit) == "fc2.output activation_grad"


def apart(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """Terms that differ from rank to rank."""
    return part * (0.75 if at["tp"] or at["cp"] else 0.25)


def test_terms_that_differ_pass_too(bench: Bench) -> None:
    edit = only("activation_grad", "fc2.output", apart)
    assert first(bench, edit).startswith("each rank of cp holds a term")


@pytest.mark.parametrize("edit", [times(0.5), apart])
def test_ranks_that_share_all_tokens_hold_no_terms(bench: Bench, edit: Edit) -> None:
    edit = only("activation_grad", "fc2.output", edit)
    assert first(bench, edit, point=Point.of(tp=2)) == "fc2.output activation_grad"


@pytest.mark.parametrize(
    ("kind", "path"), [("activation_grad", "norm.output"), ("param_grad", "fc2.weight")]
)
def test_terms_from_which_something_wrong_is_computed_lead_the_report(
    bench: Bench, kind: str, path: str
) -> None:
    edit = both(HALVES, only(kind, path, times(0.3)))
    assert first(bench, edit) == "fc2.output activation_grad"


def test_a_fault_of_the_reduction_is_not_blamed_on_terms(bench: Bench) -> None:
    edit = both(HALVES, only("main_grad", "fc2.weight", times(0.3)))
    assert first(bench, edit) == "fc2.weight main_grad"


def test_a_shard_is_no_term(bench: Bench) -> None:
    edit = only("activation_grad", "norm.output", times(0.5))
    assert first(bench, edit) == "norm.output activation_grad"


def test_terms_are_wrong_if_clipping_may_hide_what_follows(bench: Bench) -> None:
    def without(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.kind == "param_grad" else part

    edit = both(HALVES, without)
    assert first(bench, edit).startswith("each rank of cp")
    clips = [NoteEvent("clipped", "clip_grad_norm_")]
    assert first(bench, edit, notes=clips) == "fc2.output activation_grad"
