"""Proposals restore undeclared layouts, pass when adopted, and do not explain bugs away."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
import torch

from pytest_trainsafe.core.layout import Placement, axes_of
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
from pytest_trainsafe.judges.compare.declarations.propose import has_missing, propose
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.text.proposal import proposal_rows
from pytest_trainsafe.trace.facts import Annotations
from tests.support.compare.traces import Bench, Edit, Record, healthy, training
from tests.support.compare.undeclared_layouts import undeclared

POINT = Point.of(tp=2, cp=2)
ALL = {
    "cp_order": "contiguous",
    "loss": {"partial": ["cp"]},
    "parameters": {
        "fc1.weight": {"tp_dim": 0},
        "fc1.bias": {"tp_dim": 0},
        "fc2.weight": {"tp_dim": 1},
    },
    "modules": {"*": {"output": {"cp_dim": 0}}, "fc1": {"output": {"cp_dim": 0, "tp_dim": -1}}},
}


def _loss(record: Record) -> bool:
    return record.id.kind == "loss"


def proposed(rung: RungTraces) -> Proposal:
    comparison = compare(rung)
    assert comparison.failed
    assert has_missing(rung, comparison)
    found = propose(rung, comparison, ())
    assert found is not None
    return found


def split(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """Losses of two unequal terms; one rank alone, as in the bench, would confirm nothing."""
    return record.tensor.to(part.dtype) * (0.25 if at["cp"] else 0.75) if _loss(record) else part


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_every_layout_is_proposed_and_fits(bench: Bench, dtype: str) -> None:
    found = proposed(undeclared(bench.rung(POINT, split, dtype=dtype)))
    assert found.wanted == ALL
    assert (found.left, found.unexplained, found.withheld) == (None, "", 0)


def test_only_undeclared_layouts_are_proposed(bench: Bench) -> None:
    def keep(id: TensorId, placement: Placement) -> bool:
        return not (id.module == "fc1" and id.kind.startswith("activation")) or (
            getattr(placement, "axis", "") == "cp"
        )

    found = proposed(undeclared(bench.rung(POINT), keep))
    assert found.wanted["modules"] == {"fc1": {"output": {"cp_dim": 0, "tp_dim": -1}}}
    assert found.wanted.keys() <= {"modules", "cp_order"}


def test_with_everything_declared_nothing_is_proposed(bench: Bench) -> None:
    rung = bench.rung(POINT)
    assert propose(rung, compare(rung), ()) is None


def test_a_remaining_error_is_measured_again_before_it_is_reported_as_wrong(bench: Bench) -> None:
    """An error slightly above a small sample of noise does not change the proposal."""

    def slightly(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * (1 + 1e-9) if record.id.kind == "activation" else part

    rung = undeclared(bench.rung(Point.of(tp=2), slightly, dtype="float64"))
    left: list[int] = []

    def again(adopted: RungTraces, failed: Comparison) -> tuple[RungTraces, Comparison]:
        left.append(len(failed.findings))
        failed.findings.clear()
        return adopted, failed

    once, twice = propose(rung, compare(rung), ()), propose(rung, compare(rung), (), again)
    assert once is not None
    assert twice is not None
    assert once.left is not None
    assert left[0] > 0
    assert twice.left is None
    assert twice.wanted == once.wanted


def unreduced(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """fc2 lacks its sum over tp, and the gradients that follow in this step are wrong."""
    if record.id.step == INITIAL or record.id.kind != "activation" or record.id.module != "fc2":
        later = record.id.step != INITIAL and record.id.kind == "activation_grad"
        return part * 1.01 if later else part
    share = torch.rand(part.shape, generator=torch.Generator().manual_seed(3)).to(part.dtype)
    return part * (share if at["tp"] else 1 - share)


def test_a_missing_reduction_is_not_proposed_as_a_layout(bench: Bench) -> None:
    rung = undeclared(bench.rung(Point.of(tp=2), unreduced, dtype="float64"))
    found = proposed(rung)
    assert "fc2" not in found.wanted["modules"]
    assert found.wanted["modules"] == {"fc1": {"output": {"tp_dim": -1}}}
    assert found.withheld == 1
    assert found.left is not None
    text = " ".join(text for _, text, _ in proposal_rows(found))
    assert "the program lacks a reduction, or does one twice" in text
    assert f"{found.left.where} is still wrong" in text
    placeless = dataclasses.replace(found, left=msgspec.structs.replace(found.left, where=None))
    text = " ".join(text for _, text, _ in proposal_rows(placeless))
    assert f"what remains: {found.left.message}" in text


def scaled(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    wrong = record.id.kind == "activation" and record.id.module == "fc1"
    return part * 1.5 if wrong else part


def test_a_wrong_tensor_is_reported_with_the_nearest_layout(bench: Bench) -> None:
    found = proposed(undeclared(bench.rung(POINT, scaled)))
    assert "fc1" not in found.wanted["modules"]
    assert found.unexplained.startswith("fc1.output: no layout explains it; the nearest is")
    assert "dimension 0 cut over cp, dimension 1 cut over tp" in found.unexplained
    assert "leaves a relative error of 0.5" in found.unexplained
    assert found.left is not None


def blank(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(part) if record.id.module == "fc1" and _output(record.id) else part


def _output(id: TensorId) -> bool:
    return id.kind in ("activation", "activation_grad")


def test_no_layout_is_proposed_for_tensors_of_zeros(bench: Bench, tmp_path: Any) -> None:
    rung = bench.rung(Point.of(tp=2), blank, dtype="float64")
    zeros = [
        dataclasses.replace(r, tensor=r.tensor * 0) if r.id.module == "fc1" and _output(r.id) else r
        for r in training("float64")
    ]
    from tests.support.compare.traces import write

    rung = dataclasses.replace(
        rung, reference=write(tmp_path / "a", zeros), perturbed=write(tmp_path / "b", zeros)
    )
    found = proposed(undeclared(rung))
    assert "modules" not in found.wanted
    assert "its values cannot confirm a layout: all of them are equal or zero" in found.unexplained


def test_a_cp_order_that_contradicts_the_annotations_is_reported(bench: Bench) -> None:
    note = Annotations("/its/a.yaml", "zigzag")
    found = proposed(undeclared(bench.rung(Point.of(cp=2), split, notes=[note])))
    assert "modules" not in found.wanted
    assert "over cp is contiguous, while the annotations have cp_order: zigzag" in found.unexplained


def test_an_output_gradient_with_another_layout_than_its_output_gets_its_own_key(
    bench: Bench,
) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind != "activation_grad" or record.id.module != "norm":
            return part
        return part * (0.25 if at["tp"] else 0.75)

    def over_tp(id: TensorId, placement: Placement) -> bool:
        return "tp" in axes_of(placement)

    found = proposed(undeclared(bench.rung(Point.of(tp=2), edit, dtype="float64"), over_tp))
    assert found.wanted == {"modules": {"norm": {"output_grad": {"tp_partial": True}}}}
    assert found.left is None


def test_a_loss_that_is_a_mean_is_proposed_as_one(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        # The bench gives one rank the whole loss; here the ranks hold unequal terms of a mean.
        if record.id.kind != "loss":
            return part
        return record.tensor.to(part.dtype) * (1.5 if at["cp"] else 0.5)

    found = proposed(undeclared(bench.rung(Point.of(cp=2), edit, dtype="float64")))
    assert found.wanted["loss"] == {"mean": ["cp"]}


def test_sequence_parallel_is_proposed_for_partial_parameter_gradients_with_sp(
    bench: Bench,
) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind != "param_grad" or record.id.path != "norm.weight":
            return part
        return part * (0.25 if at["tp"] else 0.75) + (1 if at["tp"] else -1)

    point = Point.of(tp=2, sp=True)
    rung = undeclared(bench.rung(point, edit, dtype="float64"), lambda id, placement: True)
    assert proposed(rung).wanted == {"parameters": {"norm.weight": {"sequence_parallel": True}}}


def halves(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """Each tp rank has a term of the gradient of norm.weight."""
    if record.id.kind != "param_grad" or record.id.path != "norm.weight":
        return part
    return part * (0.25 if at["tp"] else 0.75) + (1 if at["tp"] else -1)


def test_gradient_partial_is_proposed_for_partial_parameter_gradients_without_sp(
    bench: Bench,
) -> None:
    """An example is a norm that every tp rank applies to its own attention heads."""
    rung = bench.rung(Point.of(tp=2), halves, dtype="float64")
    rung = undeclared(rung, lambda id, placement: True)
    assert proposed(rung).wanted == {"parameters": {"norm.weight": {"gradient_partial": ["tp"]}}}


def test_partial_gradients_that_are_never_reduced_are_not_proposed(bench: Bench) -> None:
    def unreduced_norm(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "main_grad" and record.id.path == "norm.weight":
            return part * (0.25 if at["tp"] else 0.75) + (1 if at["tp"] else -1)
        return halves(record, at, part)

    rung = bench.rung(Point.of(tp=2), unreduced_norm, dtype="float64")
    found = proposed(undeclared(rung, lambda id, placement: True))
    assert (found.wanted, found.withheld) == ({}, 1)
    assert found.left is not None
    assert found.left.where is not None
    assert found.left.where.kind == "main_grad"
    assert {label: text for label, text, _ in proposal_rows(found)}["partial sums"] == (
        "1 tensor agrees if the ranks' values are added up, and the tensors computed from it are "
        "wrong: the program lacks a reduction, or does one twice. Mend the program; a layout of "
        "partial sums would hide the fault"
    )


def test_partial_gradients_that_are_reduced_are_proposed_beside_another_fault(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        wrong = (record.id.kind, record.id.path) == ("main_grad", "fc2.weight")
        return part * 3 if wrong else halves(record, at, part)

    rung = bench.rung(Point.of(tp=2), edit, dtype="float64")
    found = proposed(undeclared(rung, lambda id, placement: True))
    assert found.wanted == {"parameters": {"norm.weight": {"gradient_partial": ["tp"]}}}
    assert found.withheld == 0
    assert found.left is not None
    assert found.left.where is not None
    assert (found.left.where.kind, found.left.where.path) == ("main_grad", "fc2.weight")


def test_sharded_parameters_initialized_as_whole_are_proposed_by_their_shapes(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        initial = record.id.kind == "param" and record.id.step == INITIAL
        return part * 0 + 1 if initial and record.id.path == "fc1.weight" else part

    found = proposed(undeclared(bench.rung(Point.of(tp=2), edit, dtype="float64")))
    assert (found.shaped, found.unexplained) == (1, "")
    # The other parameters hold their own shards, which are proposed by their values.
    assert found.wanted["parameters"] == ALL["parameters"]
    rows = proposal_rows(found)
    because = next(text for label, text, _ in rows if label == "because")
    assert because.startswith(
        "1 parameter is sharded, as its shape shows, but was initialized as if every rank"
    )
    assert ("", "  fc1.weight: {tp_dim: 0}", False) in rows


def test_uneven_shards_are_proposed_by_their_values(bench: Bench) -> None:
    """At tp=3, 16 rows are cut into 6, 6 and 4."""
    found = proposed(undeclared(bench.rung(Point.of(tp=3), dtype="float64")))
    assert (found.left, found.shaped) == (None, 0)
    assert found.wanted["parameters"] == ALL["parameters"]
    assert found.wanted["modules"] == {"fc1": {"output": {"tp_dim": -1}}}


def test_uneven_shards_initialized_as_whole_are_proposed_by_their_shapes(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        initial = record.id.kind == "param" and record.id.step == INITIAL
        return part * 0 + len(part) if initial and record.id.path != "norm.weight" else part

    found = proposed(undeclared(bench.rung(Point.of(tp=3), edit, dtype="float64")))
    assert (found.shaped, found.unexplained) == (3, "")
    assert found.wanted["parameters"] == ALL["parameters"]


def test_shards_that_torch_chunk_does_not_cut_are_not_proposed_by_their_shapes(
    bench: Bench,
) -> None:
    """At tp=3, one rank more has 4 of the 16 rows: 6, 4 and 4."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        initial = record.id.kind == "param" and record.id.step == INITIAL
        if not initial or record.id.path != "fc1.weight":
            return part
        return part[:4] * 0 if at["tp"] else part * 0

    found = proposed(undeclared(bench.rung(Point.of(tp=3), edit, dtype="float64")))
    assert found.shaped == 0
    assert "fc1.weight" not in found.wanted["parameters"]


def test_parameters_that_differ_between_ranks_are_not_proposed_by_their_shapes(
    bench: Bench,
) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        initial = record.id.kind == "param" and record.id.step == INITIAL
        return part * 0 + at["tp"] if initial and record.id.path == "fc1.weight" else part

    found = proposed(undeclared(bench.rung(Point.of(tp=2), edit, dtype="float64")))
    assert found.shaped == 0
    assert "fc1.weight" not in found.wanted["parameters"]
    assert "fc1.weight: no layout explains it; the nearest is dimension 0 cut" in found.unexplained


@pytest.mark.parametrize("edit", [healthy, scaled])
def test_a_proposal_names_the_annotation_file_that_was_read(bench: Bench, edit: Edit) -> None:
    note = Annotations("/its/a.yaml", "contiguous")
    found = proposed(undeclared(bench.rung(POINT, edit, notes=[note])))
    assert found.file == "/its/a.yaml"
    assert "cp_order" not in found.wanted


def test_a_proposal_is_placed_under_the_model_of_the_annotations(bench: Bench) -> None:
    note = Annotations("/its/a.yaml", "", "gpt")
    found = proposed(undeclared(bench.rung(Point.of(tp=2), notes=[note])))
    assert found.model == "gpt"
    lines = [text for label, text, _ in proposal_rows(found) if not label]
    assert lines[:3] == ["models:", "  gpt:", "    parameters:"]
