"""A passing gradient is inconclusive if all of its values are exact in a narrower dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.layout import Layout, Owned
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent, StepEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest
from tests.support.compare.traces import draw, parameter

Add = Callable[[Sequence[torch.Tensor]], torch.Tensor]

MICROBATCHES = 3


def in_float32(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(terms)).float().sum(dim=0)


def in_bfloat16(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total.float()


def terms_of(shape: tuple[int, ...] = (8, 8)) -> list[torch.Tensor]:
    return [draw(f"term {index}", shape).bfloat16() for index in range(MICROBATCHES)]


def noisy(terms: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [term * (1 + draw("noise", tuple(term.shape)) * 2**-8).bfloat16() for term in terms]


def write(
    path: Path,
    terms: Sequence[torch.Tensor],
    main: torch.Tensor,
    *,
    layout: Layout = (),
    recorded: bool = True,
    kind: str = "main_grad",
    notes: Sequence[NoteEvent] = (),
    backwards: int = 0,
) -> Trace:
    """A trace of one step: micro-batches' gradients, and what the optimizer is given.

    The backward of the layer is recorded in the first `backwards` micro-batches.
    """
    manifest = manifest_of(RunSpec(program="model.train", dtype="bfloat16"), "cpu")
    write_manifest(path, manifest)
    writer = RankWriter(path, 0)
    for note in notes:
        writer.add(note)
    for index, term in enumerate(terms if recorded else ()):
        writer.add_tensor(parameter("param_grad", "fc.weight", 0, index), term, (), "default")
    for index in range(backwards):
        where = TensorId(0, index, "activation_grad", "fc", "output")
        writer.add_tensor(where, torch.ones(2).bfloat16(), (), "default")
    name = "fc.weight.exp_avg" if kind == "optimizer_state" else "fc.weight"
    writer.add_tensor(parameter(kind, name, 0), main, layout, "default")
    writer.add(StepEvent(0, MICROBATCHES, "", "", True, 0.0))
    writer.close()
    return Trace.open(path)


def doubts(folder: Path, candidate: Trace, reference: Trace | None = None) -> list[str]:
    """The messages of the check `narrowed`; asserts that there are no other findings."""
    terms = terms_of()
    reference = reference or write(folder / "reference", terms, in_float32(terms))
    perturbed = write(folder / "perturbed", noisy(terms), in_float32(noisy(terms)))
    found = compare(RungTraces("bfloat16", candidate, reference, perturbed)).findings
    assert {finding.check for finding in found} <= {"narrowed"}, found
    assert {finding.verdict for finding in found} <= {"inconclusive"}
    return [finding.message for finding in found]


def test_gradients_accumulated_in_bfloat16_are_inconclusive(tmp_path: Path) -> None:
    terms = terms_of()

    [message] = doubts(tmp_path, write(tmp_path / "candidate", terms, in_bfloat16(terms)))

    assert message.startswith("every value is exact in bfloat16, although the tensor is stored as")


def test_unclipped_gradients_accumulated_in_bfloat16_are_inconclusive(tmp_path: Path) -> None:
    """Clipped gradients are not exact in bfloat16, because the clipping factor is not."""
    terms, kind = terms_of(), "unclipped_grad"
    reference = write(tmp_path / "exact", terms, in_float32(terms), kind=kind)
    perturbed = write(tmp_path / "noise", terms, in_float32(noisy(terms)), kind=kind)
    candidate = write(tmp_path / "candidate", terms, in_bfloat16(terms), kind=kind)

    [finding] = compare(RungTraces("bfloat16", candidate, reference, perturbed)).findings

    assert (finding.check, finding.verdict) == ("narrowed", "inconclusive")


def test_gradients_accumulated_in_float32_pass(tmp_path: Path) -> None:
    terms = terms_of()
    candidate = write(tmp_path / "candidate", terms, in_float32(terms[::-1]))

    assert doubts(tmp_path, candidate) == []


def test_narrow_gradients_pass_if_those_of_the_reference_are_as_narrow(tmp_path: Path) -> None:
    terms = terms_of()
    reference = write(tmp_path / "narrow", terms, in_bfloat16(terms))
    candidate = write(tmp_path / "candidate", terms, in_bfloat16(terms[::-1]))

    assert doubts(tmp_path, candidate, reference) == []


def test_gradients_that_the_candidate_alone_stores_in_bfloat16_are_inconclusive(
    tmp_path: Path,
) -> None:
    terms = terms_of()
    candidate = write(tmp_path / "candidate", terms, in_bfloat16(terms).bfloat16())

    [message] = doubts(tmp_path, candidate)
    assert message.startswith("the candidate stores the tensor as bfloat16, and the reference as ")


def test_gradients_that_both_sides_store_in_bfloat16_pass(tmp_path: Path) -> None:
    terms = terms_of()
    main = in_bfloat16(terms).bfloat16()
    candidate = write(tmp_path / "candidate", terms, main)

    assert doubts(tmp_path, candidate, write(tmp_path / "narrow", terms, main)) == []


def test_narrow_gradients_pass_if_the_framework_is_configured_to_reduce_in_bfloat16(
    tmp_path: Path,
) -> None:
    terms, note = terms_of(), NoteEvent("reduces_in", "bfloat16")
    candidate = write(tmp_path / "candidate", terms, in_bfloat16(terms), notes=[note])

    assert doubts(tmp_path, candidate) == []


def test_a_float32_sum_of_few_terms_may_be_exact_in_float16(tmp_path: Path) -> None:
    """The sum of two bfloat16 numbers of similar size has at most 11 bits, as float16 has."""
    even = [(torch.arange(128, 192).view(8, 8) / 64).bfloat16(), draw("x", (8, 8)).bfloat16()]
    even[1] = (even[0].float() + 1 / 64).bfloat16()
    terms = [even[0], (even[1].float() / 2).bfloat16()]
    main = in_float32(terms)
    assert bool((main.half().float() == main).all())
    assert not bool((main.bfloat16().float() == main).all())
    reference = write(tmp_path / "reference", terms, main * (1 + 2**-20))
    candidate = write(tmp_path / "candidate", terms, main)
    found = compare(RungTraces("bfloat16", candidate, reference, reference)).findings

    assert "narrowed" not in {finding.check for finding in found}


@pytest.mark.parametrize("how", ["owned", "no terms", "one term"])
def test_the_gradient_of_a_single_backward_may_be_narrow(tmp_path: Path, how: str) -> None:
    """With ep, an expert's rank computes in one backward what the reference does in several."""
    terms = terms_of()
    main = in_float32(terms).bfloat16().float()
    layout = (Owned(("cp", "dp"), 1),) if how == "owned" else ()
    given = [main.bfloat16()] if how == "one term" else terms
    candidate = write(
        tmp_path / "candidate", given, main, layout=layout, recorded=how != "no terms"
    )

    reference = write(tmp_path / "whole", terms, in_float32(terms))
    found = compare(RungTraces("bfloat16", candidate, reference, reference)).findings
    assert "narrowed" not in {finding.check for finding in found}


@pytest.mark.parametrize(
    ("backwards", "recorded", "found"), [(3, False, ["narrowed"]), (1, False, []), (3, True, [])]
)
def test_a_layer_that_adds_to_a_narrow_main_gradient_itself_is_found_by_its_backwards(
    tmp_path: Path, backwards: int, recorded: bool, found: list[str]
) -> None:
    """A layer that fuses the sum gives autograd no gradient: there are no terms to add up."""
    terms = terms_of()
    whole, summed = in_float32(terms), in_bfloat16(terms)
    given = {"recorded": False, "backwards": backwards}
    candidate = write(tmp_path / "candidate", terms, summed, **given)  # type: ignore[arg-type]
    given = {"recorded": recorded, "backwards": 3}
    reference = write(tmp_path / "reference", terms, whole, **given)  # type: ignore[arg-type]
    noise = write(tmp_path / "noise", terms, in_float32(noisy(terms)), **given)  # type: ignore[arg-type]

    findings = compare(RungTraces("bfloat16", candidate, reference, noise)).findings
    gradients = [f for f in findings if f.where is not None and f.where.kind == "main_grad"]
    assert [finding.check for finding in gradients] == found


def test_narrow_gradients_of_mostly_zeros_pass(tmp_path: Path) -> None:
    terms = [torch.zeros(8, 8).bfloat16() for _ in range(MICROBATCHES)]
    for term in terms:
        term[0, :3] = draw("row", (3,)).bfloat16() * 3
    reference = write(tmp_path / "few", terms, in_float32(terms))
    candidate = write(tmp_path / "candidate", terms, in_bfloat16(terms))
    found = compare(RungTraces("bfloat16", candidate, reference, reference)).findings

    assert "narrowed" not in {finding.check for finding in found}


def test_an_optimizer_state_rounded_to_bfloat16_is_a_narrowed_finding(tmp_path: Path) -> None:
    terms = terms_of()
    state = 0.1 * in_float32(terms)
    reference = write(tmp_path / "reference", terms, state, kind="optimizer_state")
    perturbed = write(tmp_path / "noise", terms, state * (1 + 2**-8), kind="optimizer_state")
    narrow = state.bfloat16().float()
    candidate = write(tmp_path / "candidate", terms, narrow, kind="optimizer_state")

    found = compare(RungTraces("bfloat16", candidate, reference, perturbed)).findings

    assert [finding.check for finding in found] == ["narrowed"]


def losses(path: Path, values: Sequence[torch.Tensor]) -> Trace:
    """A trace of one step with one loss for each micro-batch."""
    write_manifest(path, manifest_of(RunSpec(program="model.train", dtype="bfloat16"), "cpu"))
    writer = RankWriter(path, 0)
    for index, value in enumerate(values):
        writer.add_tensor(TensorId(0, index, "loss", "", "loss"), value, (), "default")
    writer.add(StepEvent(0, len(values), "", "", True, 0.0))
    writer.close()
    return Trace.open(path)


def loss_findings(folder: Path, candidate: Sequence[torch.Tensor], wide: bool = True) -> list[str]:
    """The findings on the candidate's losses; the reference's are in float32, or as narrow."""
    exact = [2 + draw(f"loss {index}", ()).float() for index in range(len(candidate))]
    if not wide:
        exact = [loss.bfloat16() for loss in exact]
    noise = [loss * (1 + draw(f"noise {i}", ()).float() * 2**-8) for i, loss in enumerate(exact)]
    ours, due = losses(folder / "candidate", candidate), losses(folder / "reference", exact)
    found = compare(RungTraces("bfloat16", ours, due, losses(folder / "noise", noise))).findings
    return [f"{each.check} {each.where and each.where.microbatch}" for each in found]


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_many_losses_computed_in_bfloat16_are_one_narrowed_finding(
    tmp_path: Path, stored: torch.dtype
) -> None:
    narrow = [(2 + draw(f"loss {index}", ()).bfloat16()).to(stored) for index in range(6)]

    assert loss_findings(tmp_path / "six", narrow) == ["narrowed 0"]
    assert loss_findings(tmp_path / "few", narrow[:3]) == []
    assert loss_findings(tmp_path / "alike", narrow, wide=False) == []


def test_narrow_losses_pass_if_one_loss_needs_float32(tmp_path: Path) -> None:
    given = [(2 + draw(f"loss {index}", ()).bfloat16()).float() for index in range(6)]
    given[4] = 2 + draw("loss 4", ()).float()

    assert loss_findings(tmp_path, given) == []


def norms(path: Path, values: Sequence[torch.Tensor]) -> Trace:
    """A trace of one gradient norm in each step."""
    write_manifest(path, manifest_of(RunSpec(program="model.train", dtype="bfloat16"), "cpu"))
    writer = RankWriter(path, 0)
    for step, value in enumerate(values):
        writer.add_tensor(TensorId(step, None, "grad_norm", "", "grad_norm"), value, (), "default")
        writer.add(StepEvent(step, 1, "", "", True, 0.0))
    writer.close()
    return Trace.open(path)


@pytest.mark.parametrize(
    ("steps", "narrow", "found"),
    [(2, 2, ["narrowed"]), (2, 1, []), (1, 1, []), (3, 3, ["narrowed"])],
)
def test_gradient_norms_computed_in_bfloat16_are_one_narrowed_finding(
    tmp_path: Path, steps: int, narrow: int, found: list[str]
) -> None:
    """A single norm may be exact in bfloat16 by chance."""
    wide = [2 + draw(f"norm {step}", ()).float() for step in range(steps)]
    ours = [value.bfloat16().float() if i < narrow else value for i, value in enumerate(wide)]
    noise = [value * (1 + 2**-7) for value in wide]
    rung = RungTraces(
        "bfloat16",
        norms(tmp_path / "candidate", ours),
        norms(tmp_path / "reference", wide),
        norms(tmp_path / "noise", noise),
    )
    assert [each.check for each in compare(rung).findings] == found


@pytest.mark.parametrize("kind", ["optimizer_state", "master_param"])
def test_a_state_or_a_master_that_the_candidate_alone_stores_narrowly_is_inconclusive(
    tmp_path: Path, kind: str
) -> None:
    wide = in_float32(terms_of())
    reference = write(tmp_path / "wide", [], wide, kind=kind)
    perturbed = write(tmp_path / "noise", [], wide * (1 + 2**-9), kind=kind)
    for name, value in (("narrow", wide.bfloat16()), ("same", wide)):
        candidate = write(tmp_path / name, [], value, kind=kind)
        found = compare(RungTraces("bfloat16", candidate, reference, perturbed)).findings
        messages = [each.message for each in found if each.check == "narrowed"]
        text = "the candidate stores the tensor as bfloat16, and the reference as float32"
        assert [message.startswith(text) for message in messages] == [True] * (name == "narrow")
