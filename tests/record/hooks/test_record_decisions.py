"""A Run records the decisions of its modules, and may compute with those of another Run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe import assert_equivalent
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context

ANNOTATIONS = {"modules": {"choose": {"output": {"decision": True}}}}
X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Choose(nn.Module):
    """The index of the best score of each row."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.topk(1, dim=-1).indices


class Model(nn.Module):
    """Multiplies scores by `sign`, chooses one in each row, and adds up the chosen scores."""

    def __init__(self, sign: int, choose: nn.Module) -> None:
        super().__init__()
        self.sign, self.score, self.choose = sign, nn.Linear(3, 3), choose

    def forward(self, x: Tensor) -> Tensor:
        scores = self.sign * self.score(x)
        return scores.gather(-1, self.choose(scores)).sum()


def training(sign: int = 1, choose: nn.Module | None = None) -> Any:
    """A program of one step of two micro-batches."""

    def train(ctx: Context) -> None:
        model = Model(sign, choose or Choose())
        ctx.initialize(model)
        ctx.watch(model, annotations=ANNOTATIONS)
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    model(X + index).backward()

    return train


def choices(recorded: Any, name: str = "choose.output") -> list[Tensor]:
    held = recorded.rank.tensors
    return [
        recorded.trace.load(0, event)
        for id, event in held.items()
        if id.kind == "decision" and id.path == name
    ]


def test_decisions_and_scores_are_recorded_in_full_even_with_sketches(record) -> None:
    recorded = record(training(), record="sketch")

    for scores, chosen in zip(choices(recorded, "choose.scores"), choices(recorded), strict=True):
        assert torch.equal(chosen, scores.argmax(dim=-1, keepdim=True))
    assert len(choices(recorded)) == 2
    assert "choose.output" not in recorded.paths("activation")


def test_a_replaying_run_records_its_own_decisions_and_computes_with_the_replayed_ones(
    record,
) -> None:
    first = record(training())
    alone = record(training(sign=-1))
    replaying = record(training(sign=-1), replayed=str(first.trace.path))

    for own, replayed, recorded in zip(
        choices(alone), choices(first), choices(replaying), strict=True
    ):
        assert torch.equal(recorded, own)
        assert not torch.equal(recorded, replayed)
    for index in (0, 1):
        # With the replayed decisions, the negated scores add up to the negated sum.
        total = first.get("activation", "output", microbatch=index)
        assert replaying.get("activation", "output", microbatch=index) == -total
        assert alone.get("activation", "output", microbatch=index) != -total


def test_a_decision_annotation_on_a_module_without_integer_outputs_is_refused(record) -> None:
    with pytest.raises(ProgramError, match=r"choose is annotated as a decision.*int64"):
        record(training(choose=nn.Identity()))


class ChooseSecond(nn.Module):
    """The index of the second best score of each row: wrong by more than rounding."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.topk(2, dim=-1).indices[..., 1:]


def test_a_wrong_choice_fails_the_comparison_although_the_reference_choice_is_replayed(
    record,
) -> None:
    reference, noisy = record(training()), record(training(), perturbation=2.0**-23)
    replayed = {"replayed": str(reference.trace.path)}
    right = record(training(), **replayed)
    wrong = record(training(choose=ChooseSecond()), **replayed)

    accept = ["moved", "gradients", "gradients-compared"]  # there is no optimizer here
    assert_equivalent(right.trace, reference.trace, perturbed=noisy.trace, accept=accept)
    with pytest.raises(AssertionError) as failure:
        assert_equivalent(wrong.trace, reference.trace, perturbed=noisy.trace, accept=accept)

    text = " ".join(str(failure.value).split())
    assert "starts at choose.output · decision · step 0 · micro-batch 0" in text
    assert "4 of 4 choices differ from the reference's" in text
