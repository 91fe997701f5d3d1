"""A sum over ranks that no later tensor confirms is proposed with its other explanation: a bug."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from pytest_trainsafe.core.layout import Placement, axes_of
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
from pytest_trainsafe.judges.compare.declarations.propose import propose
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.text.proposal import proposal_rows
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Bench, Record
from tests.support.compare.undeclared_layouts import terms, undeclared, without_gradient


def over_tp(id: TensorId, placement: Placement) -> bool:
    return "tp" in axes_of(placement)


def proposed(rung: RungTraces) -> tuple[Proposal, str]:
    found = propose(rung, compare(rung), ())
    assert found is not None
    rows = proposal_rows(found)
    return found, " ".join(f"{label} {text}".strip() for label, text, _ in rows)


@pytest.fixture
def layer(bench: Bench) -> RungTraces:
    edit = terms("activation", "norm", "tp")
    return undeclared(bench.rung(Point.of(tp=2), edit, dtype="float64"), over_tp)


def test_a_partial_output_whose_gradient_returns_is_decided(layer: RungTraces) -> None:
    found, text = proposed(layer)
    assert found.wanted == {"modules": {"norm": {"output": {"tp_partial": True}}}}
    assert (found.undecided, found.certain) == ((), found.wanted)
    assert "or run with --trainsafe-annotate" in text
    assert "or a reduction" not in text


def test_a_partial_output_that_the_loss_does_not_use_may_lack_a_reduction(
    layer: RungTraces,
) -> None:
    found, text = proposed(without_gradient(layer, "norm"))
    assert found.wanted == {"modules": {"norm": {"output": {"tp_partial": True}}}}
    assert found.certain == {}
    assert found.headline == "layouts are missing for 1 module, or a reduction is"
    assert "or a reduction over tp is missing in norm.output" in text
    assert text.endswith("--trainsafe-annotate does not write this entry")


def test_losses_that_differ_between_ranks_with_the_same_samples_may_lack_a_reduction(
    bench: Bench,
) -> None:
    edit = terms("loss", "", "tp")
    found, text = proposed(undeclared(bench.rung(Point.of(tp=2), edit, dtype="float64"), over_tp))
    assert found.wanted == {"loss": {"partial": ["tp"]}}
    assert found.certain == {}
    assert found.headline == "the layout of the loss is missing, or a reduction is"
    assert "these ranks have the same samples" in text


def test_losses_of_ranks_with_other_tokens_are_decided(bench: Bench) -> None:
    edit = terms("loss", "", "cp")
    found, _ = proposed(undeclared(bench.rung(Point.of(cp=2), edit, dtype="float64")))
    assert found.wanted["loss"] == {"partial": ["cp"]}
    assert found.undecided == ()


def nested(rung: RungTraces) -> RungTraces:
    """The rung of a model whose first layer is inside its second one."""
    names = {"norm": "attn.o", "fc1": "attn"}

    def renamed(trace: Trace) -> Trace:
        ranks = [
            dataclasses.replace(
                rank,
                tensors={
                    msgspec.structs.replace(id, module=names.get(id.module, id.module)): event
                    for id, event in rank.tensors.items()
                },
            )
            for rank in trace.ranks
        ]
        return Trace(trace.path, trace.manifest, ranks)

    assert rung.perturbed is not None
    return dataclasses.replace(
        rung,
        candidate=renamed(rung.candidate),
        reference=renamed(rung.reference),
        perturbed=renamed(rung.perturbed),
        shadow=renamed(rung.shadow) if rung.shadow is not None else None,
    )


@pytest.mark.parametrize(("wrong", "reduced"), [("fc2", True), ("fc1", False)])
def test_beside_a_fault_a_sum_is_proposed_if_the_module_around_it_is_right(
    bench: Bench, wrong: str, reduced: bool
) -> None:
    sums = terms("activation", "norm", "tp")

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        fault = (record.id.kind, record.id.module) == ("activation", wrong)
        return part * 1.5 if fault else sums(record, at, part)

    rung = undeclared(bench.rung(Point.of(tp=2), edit, dtype="float64"), over_tp)
    found, text = proposed(nested(rung))

    modules = {"o": {"output": {"tp_partial": True}}} if reduced else None
    assert found.wanted.get("modules") == modules
    assert found.withheld == (0 if reduced else 1)
    assert ("Mend the program" in text) == (not reduced)
