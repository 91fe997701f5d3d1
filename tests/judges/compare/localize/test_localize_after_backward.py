"""Faults after the backward: clipping changes all gradients, and only the cause is blamed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.common_factor import with_factor
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM, Fault, Stages, blame
from pytest_trainsafe.judges.compare.patterns.microbatches import LOST
from tests.support.compare.clipped_traces import both, norm_wrong, rung
from tests.support.compare.traces import Edit, Record, only
from tests.support.localize.blamed_traces import blamed, located_faults, text_of

TP, DP = Point.of(tp=2), Point.of(dp=2)


def pairs(faults: list[Fault]) -> list[tuple[str, str]]:
    return [(fault.phase, fault.target) for fault in faults]


def test_a_wrong_norm_is_the_only_fault_although_clipping_scales_every_gradient(
    tmp_path: Path,
) -> None:
    found = rung(tmp_path, TP, norm_wrong({0: 1.5, 1: 1.2}))
    assert pairs(blamed(found)) == [("norm", PROGRAM)]
    text = text_of(located_faults(found))
    assert "the gradient norm is wrong, and clipping scales every gradient by it" in text
    assert "gradient reduction" not in text


def terms(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * (0.75 if at["dp"] else 0.25)


def test_only_the_unreduced_gradient_is_blamed_although_clipping_changes_all(
    tmp_path: Path,
) -> None:
    edit = both(norm_wrong({0: 1.5, 1: 1.5}), only("main_grad", "fc1.bias", terms))
    found = rung(tmp_path, DP, edit)
    assert pairs(blamed(found)) == [("reduction", "fc1.bias")]
    assert "the other 3 gradients differ only by the clipping factor" in text_of(
        located_faults(found)
    )


def inside_the_step(factor: float) -> Edit:
    """Clipping in the optimizer's step, after the main gradients were recorded."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "grad_norm":
            return part / factor
        if record.id.kind == "optimizer_state":
            return part * (factor**2 if record.id.name.endswith("_sq") else factor)
        return part

    return edit


def test_missing_main_gradients_are_blamed_on_the_reduction(tmp_path: Path) -> None:
    """As with FSDP2 after `set_requires_gradient_sync(False)`."""

    def none(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        if record.id.kind in ("main_grad", "unclipped_grad"):
            return None
        return part * 0 if record.id.kind == "grad_norm" else part

    found = rung(tmp_path, DP, none)
    assert {phase for phase, _ in pairs(blamed(found))} == {"reduction"}
    text = text_of(located_faults(found))
    assert "reduction of all 4 parameters is wrong: the optimizer receives no gradient" in text


def test_updates_scaled_by_a_wrong_norm_are_not_blamed_on_the_optimizer(tmp_path: Path) -> None:
    found = rung(tmp_path, TP, inside_the_step(0.7))
    assert pairs(blamed(found)) == [("norm", PROGRAM)]


def test_an_update_wrong_by_more_than_the_norms_factor_is_blamed_on_the_optimizer(
    tmp_path: Path,
) -> None:
    def more(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part + 1.0

    edit = both(inside_the_step(0.7), only("optimizer_state", "norm.weight.exp_avg", more))
    assert pairs(blamed(rung(tmp_path, TP, edit))) == [
        ("norm", PROGRAM),
        ("optimizer", "norm.weight"),
    ]


def test_wrong_first_moments_with_right_second_moments_are_blamed_on_the_optimizer(
    tmp_path: Path,
) -> None:
    """As with another beta1: the second moments are right, so the gradients were."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        norm, first = record.id.kind == "grad_norm", record.id.name.endswith("exp_avg")
        return part * 2 if norm or first else part

    found = pairs(blamed(rung(tmp_path, TP, edit)))
    assert found[0] == ("norm", PROGRAM)
    assert {phase for phase, _ in found[1:]} == {"optimizer"}
    assert len(found) == 5


def test_a_wrong_norm_of_clipped_gradients_is_not_reported_as_a_norm_of_right_gradients(
    tmp_path: Path,
) -> None:
    """Twice the gradients have twice the norm, and are the same when they are clipped."""
    wrong = rung(tmp_path, TP, only("grad_norm", "grad_norm", lambda r, at, part: part * 2))
    assert "or all gradients are scaled before the norm is computed" in text_of(
        located_faults(wrong)
    )


def test_a_wrong_norm_without_clipping_is_reported_as_a_norm_of_right_gradients(
    tmp_path: Path,
) -> None:
    double = only("grad_norm", "grad_norm", lambda r, at, part: part * 2)
    wrong = rung(tmp_path, TP, double, limit=0)
    assert "the gradient norm is wrong, although the gradients are right" in text_of(
        located_faults(wrong)
    )


def test_micro_batch_gradients_that_were_not_compared_are_not_reported_as_agreeing(
    tmp_path: Path,
) -> None:
    """Such as an expert's gradients of one micro-batch, computed from several ranks' tokens."""
    wrong = only("main_grad", "fc1.bias", lambda r, at, part: part + 1.0)
    found = rung(tmp_path, TP, wrong, limit=0, without=lambda id: id.kind == "param_grad")
    text = text_of(located_faults(found))
    assert "no micro-batch's gradient of it was compared" in text
    assert "gradient agrees" not in text


def test_a_backward_that_never_runs_is_blamed_on_the_program(tmp_path: Path) -> None:
    def lost(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if (record.id.kind, record.id.microbatch) == ("param_grad", 3) else part

    found = rung(tmp_path, TP, lost)
    faults = blamed(found)
    assert [(f.phase, f.target, f.uncalled) for f in faults] == [("backward", PROGRAM, "less")]
    text = text_of(located_faults(found))
    assert "fit.train does not run the backward of every micro-batch" in text


def test_a_gradient_that_one_parameter_lacks_in_a_micro_batch_is_blamed_on_the_parameter(
    tmp_path: Path,
) -> None:
    def lost(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        is_lost = record.id.kind == "param_grad" and record.id.path == "fc1.bias"
        return None if is_lost and record.id.microbatch == 3 else part

    assert pairs(blamed(rung(tmp_path, TP, lost))) == [("weights", "fc1.bias")]


def test_a_reduced_gradient_of_a_module_at_fault_is_no_fault_of_its_reduction(
    tmp_path: Path,
) -> None:
    """As of experts, whose micro-batch gradients are declared local and not compared."""

    def wrong(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        is_output = record.id.kind == "activation" and record.id.module == "fc1"
        reduced = record.id.kind == "main_grad" and record.id.module == "fc1"
        return part * 1.5 if is_output or reduced else part

    def local(id: TensorId) -> bool:
        return id.kind == "param_grad" and id.module == "fc1"

    found = rung(tmp_path, TP, wrong, limit=0, without=local)
    assert pairs(blamed(found)) == [("forward", "fc1")]


def test_clipping_by_the_norm_of_a_wrong_module_s_gradients_is_no_fault_of_the_clipping(
    tmp_path: Path,
) -> None:
    def wrong(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        kind, own = record.id.kind, record.id.module == "fc1"
        if kind == "main_grad":
            return part + 1.0 if own else part / 1.5
        return part * 1.5 if kind == "grad_norm" or (kind == "activation" and own) else part

    def local(id: TensorId) -> bool:
        return id.kind == "param_grad" and id.module == "fc1"

    found = rung(tmp_path, TP, wrong, without=local)
    assert pairs(blamed(found)) == [("forward", "fc1")]
    assert "clipping" not in text_of(located_faults(found))


def test_a_wrong_norm_beside_a_wrong_module_is_a_fault_if_its_gradients_are_right(
    tmp_path: Path,
) -> None:
    output = only("activation", "fc1.output", lambda record, at, part: part * 1.5)
    found = rung(tmp_path, TP, both(norm_wrong({0: 1.5, 1: 1.5}), output))
    assert pairs(blamed(found)) == [("forward", "fc1"), ("norm", PROGRAM)]


def test_a_wrong_reduction_is_blamed_although_no_gradient_before_it_was_compared(
    tmp_path: Path,
) -> None:
    def local(id: TensorId) -> bool:
        return id.kind == "param_grad" and id.module == "fc1"

    edit = only("main_grad", "fc1.bias", lambda record, at, part: part * 2)
    found = rung(tmp_path, TP, edit, limit=0, without=local)
    assert pairs(blamed(found)) == [("reduction", "fc1.bias")]


def test_a_sum_that_lacks_micro_batches_is_blamed_on_the_accumulation(tmp_path: Path) -> None:
    pattern = Pattern("other micro-batches", "micro-batch 0 of 4 is missing", cause=LOST)
    doubled = rung(tmp_path, Point.of(dp=2), only("main_grad", "fc1.bias", lambda r, at, p: p * 2))
    found = with_factor(doubled, compare(doubled))

    def phases(pattern: Pattern) -> set[str]:
        findings = [
            msgspec.structs.replace(f, pattern=pattern)
            if f.where is not None and f.where.path == "fc1.bias" and f.where.kind == "main_grad"
            else f
            for f in found.findings
        ]
        comparison = dataclasses.replace(found, findings=findings)
        faults = blame(doubled, comparison, {}, Stages(doubled.candidate))
        return {fault.phase for fault in faults if fault.target == "fc1.bias"}

    assert "accumulation" in phases(pattern)
    of_ranks = msgspec.structs.replace(pattern, axis="dp", cause="dp rank 1 is not added")
    assert "reduction" in phases(of_ranks)
    assert "accumulation" not in phases(of_ranks)
