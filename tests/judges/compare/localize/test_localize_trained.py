"""A parameter that one Run's optimizer alone trains is named so, with the optimizer's construction.

Nothing else is wrong in these traces: the parameter moves in one of the two Runs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.localize.initial import whole_steps
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Site, Unheld
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Record, only
from tests.support.localize.blamed_traces import PROGRAM, located_faults, noting, text_of

BIAS = "fc1.bias"
STEP = Site("step", "/me/fit.py:40")
MADE = Site("optimizer", "/me/fit.py:20", name="AdamW")
FROZEN = Unheld((BIAS,))


def moved(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part + 1.0


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """A rung in which the candidate alone moves BIAS."""
    folder = tmp_path_factory.mktemp("trained")
    return rung(folder, Point.of(dp=2), only("param", BIAS, moved, step=0), limit=0)


def ungraded(trace: Trace) -> Trace:
    """The trace as if no backward reached BIAS."""
    kinds = ("param_grad", "main_grad")
    ranks = [
        dataclasses.replace(
            rank,
            tensors={
                id: event
                for id, event in rank.tensors.items()
                if not (id.path == BIAS and id.kind in kinds)
            },
        )
        for rank in trace.ranks
    ]
    return trace.with_ranks(ranks)


def frozen_in_reference(given: RungTraces) -> RungTraces:
    measured = None if given.perturbed is None else ungraded(given.perturbed)
    return dataclasses.replace(given, reference=ungraded(given.reference), perturbed=measured)


def knowing(given: RungTraces, here: msgspec.Struct, there: msgspec.Struct) -> RungTraces:
    """The rung as if each Run had recorded what its optimizer does not hold."""
    theirs = noting(dataclasses.replace(given, candidate=given.reference), there).candidate
    return dataclasses.replace(noting(given, here, STEP, MADE), reference=theirs)


def test_a_parameter_that_only_the_candidate_s_optimizer_holds_is_named_so(
    wrong: RungTraces,
) -> None:
    found = located_faults(knowing(frozen_in_reference(wrong), Unheld(), FROZEN))
    assert (
        "an optimizer holds fc1.bias, but "
        "none does in the reference, and gets a gradient of it, which nothing computes in the "
        "reference"
    ) in text_of(found)
    assert "the optimizer's step of" not in text_of(found)
    assert found.source == MADE.at
    assert found.what.startswith("constructs AdamW, which gets a gradient of fc1.bias")


def test_a_gradient_that_only_the_candidate_computes_is_named_where_both_optimizers_hold_it(
    wrong: RungTraces,
) -> None:
    found = located_faults(knowing(frozen_in_reference(wrong), Unheld(), Unheld()))
    assert "the optimizer of fc1.bias gets a gradient of it, which nothing computes in the " in (
        text_of(found)
    )
    assert found.source == MADE.at


def test_the_inverse_names_the_construction_too(wrong: RungTraces) -> None:
    found = located_faults(knowing(wrong, FROZEN, Unheld()))
    assert "no watched optimizer holds fc1.bias, but one does in the reference" in text_of(found)
    assert found.source == MADE.at
    assert next(map(str, found.clauses)) == "constructs AdamW, which does not hold fc1.bias"


def test_in_whole_steps_it_is_named_as_well(wrong: RungTraces) -> None:
    given = knowing(frozen_in_reference(wrong), Unheld(), FROZEN)
    found = whole_steps(compare(given), Places(given.candidate, PROGRAM, given.reference))
    assert "an optimizer holds fc1.bias, but none does in the reference" in text_of(found)
    assert found.source == MADE.at


@pytest.mark.parametrize("known", [True, False])
def test_a_parameter_that_both_train_is_blamed_on_the_optimizer_s_step(
    wrong: RungTraces, known: bool
) -> None:
    given = knowing(wrong, Unheld(), Unheld()) if known else noting(wrong, STEP, MADE)
    found = located_faults(given)
    assert "receives agrees; the optimizer's step of fc1.bias is wrong" in (text_of(found))
    assert found.source == STEP.at


@pytest.mark.parametrize("noted", [True, False])
def test_states_that_were_not_compared_are_not_said_to_be_missing_or_to_agree(
    wrong: RungTraces, noted: bool
) -> None:
    """Such as the factors of Adafactor, which have not the parameter's shape."""

    def stateless(trace: Trace) -> Trace:
        ranks = []
        for rank in trace.ranks:
            kept = {i: e for i, e in rank.tensors.items() if i.kind != "optimizer_state"}
            ranks.append(dataclasses.replace(rank, tensors=kept))
        return trace.with_ranks(ranks)

    given = dataclasses.replace(wrong, candidate=stateless(wrong.candidate))
    note = f"the optimizer's row of {BIAS} does not have the parameter's shape"
    facts = [NoteEvent("not_compared", note)] if noted else []
    text = text_of(located_faults(noting(given, STEP, MADE, *facts)))
    assert "the optimizer's step of fc1.bias is wrong" in text
    assert ("it keeps no state" in text) is not noted
    assert "the states of the optimizer agree" not in text


def unclipped(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """Clipping by a norm without the gradient of BIAS, which is not clipped."""
    if record.id.kind in ("grad_norm", "main_grad") and record.id.path != BIAS:
        return part * (0.9 if record.id.kind == "grad_norm" else 1 / 0.9)
    return part * 3 if record.id.kind == "main_grad" else part


def test_clipping_without_a_parameter_that_is_not_held_is_no_fault_of_the_clipping(
    tmp_path: Path,
) -> None:
    """The parameter itself leads, although its update is judged with generated gradients."""
    given = rung(tmp_path, Point.of(dp=2), unclipped)
    found = located_faults(knowing(given, FROZEN, Unheld()))
    assert found.faults == (("optimizer", BIAS),)
    assert "no watched optimizer holds fc1.bias, but one does in the reference" in text_of(found)
    assert "clip" not in text_of(found)
    assert found.source == MADE.at
    held = located_faults(knowing(given, Unheld(), Unheld()))
    assert held.faults == (("reduction", BIAS),)
