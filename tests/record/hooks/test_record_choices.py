"""A choice within a module is recorded with its scores, and a Run that follows another uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe import assert_equivalent
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context

ANNOTATIONS = {"modules": {"router": {"output": {"decision": "topk"}}}}
X = torch.linspace(-1, 1, 12).reshape(4, 3)

Choose = Callable[[Tensor], Tensor]


def by_topk(scores: Tensor) -> Tensor:
    return scores.topk(2, dim=-1).indices


def by_two_calls(scores: Tensor) -> Tensor:
    """First a group of two options, then one of three that the group allows."""
    group = torch.topk(scores[:, :2], k=1).indices
    allowed = scores.clone()
    allowed[:, 1:2] += group
    return torch.argmax(allowed, dim=-1, keepdim=True)


def by_max(scores: Tensor) -> Tensor:
    return scores.max(dim=-1).indices.unsqueeze(-1)


def second_best(scores: Tensor) -> Tensor:
    """Skips the best: wrong, where the scores are certain."""
    return scores.topk(3, dim=-1).indices[:, 1:]


class Router(nn.Module):
    """Probabilities, zero but for the chosen, and a map of the chosen."""

    def __init__(self, sign: int, choose: Choose) -> None:
        super().__init__()
        self.gate, self.sign, self.choose = nn.Linear(3, 3), sign, choose

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.sign * self.gate(x)
        chosen = self.choose(scores)
        probabilities = scores.gather(-1, chosen).softmax(-1)
        whole = torch.zeros_like(scores).scatter(-1, chosen, probabilities)
        return whole, torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True)


class Model(nn.Module):
    def __init__(self, sign: int, choose: Choose, reentrant: bool | None) -> None:
        super().__init__()
        self.router, self.reentrant = Router(sign, choose), reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            whole, _ = self.router(x)
        else:
            whole, _ = checkpoint(self.router, x, use_reentrant=self.reentrant)
        return (whole * torch.arange(1.0, 13.0).view(4, 3)).sum()


def training(sign: int = 1, choose: Choose = by_topk, reentrant: bool | None = None) -> Any:
    def train(ctx: Context) -> None:
        model = Model(sign, choose, reentrant)
        ctx.initialize(model)
        ctx.watch(model, annotations=ANNOTATIONS)
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    model((X + index).requires_grad_()).backward()

    return train


def found(recorded: Any, kind: str, path: str) -> list[Tensor]:
    return [
        recorded.trace.load(0, event)
        for id, event in recorded.rank.tensors.items()
        if id.kind == kind and id.path == path
    ]


@pytest.mark.parametrize("choose", [by_topk, by_max])
def test_choice_and_scores_are_recorded_beside_the_outputs(record: Any, choose: Choose) -> None:
    run = record(training(choose=choose))

    scores, chosen = (found(run, "decision", f"router.{n}") for n in ("scores", "output"))
    assert len(scores) == len(chosen) == 2
    for by, own, marks in zip(
        scores, chosen, found(run, "activation", "router.output.1"), strict=True
    ):
        assert torch.equal(own, by.topk(own.shape[-1]).indices)
        assert torch.equal(marks.nonzero()[:, 1].view_as(own), own.sort(-1).values)


def test_several_choices_of_one_forward_are_numbered(record: Any) -> None:
    run = record(training(choose=by_two_calls))

    paths = [path for path in run.paths("decision") if "output" in path]
    assert paths == ["router.output", "router.output.1"] * 2
    assert found(run, "decision", "router.scores")[0].shape == (4, 2)
    assert found(run, "decision", "router.scores.1")[0].shape == (4, 3)


@pytest.mark.parametrize("choose", [by_topk, by_max, by_two_calls])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_run_that_replays_computes_with_the_other_s_choice(
    record: Any, choose: Choose, reentrant: bool | None
) -> None:
    first = record(training(choose=choose))
    alone = record(training(sign=-1, choose=choose))
    run = record(
        training(sign=-1, choose=choose, reentrant=reentrant), replayed=str(first.trace.path)
    )

    for path in ("router.output", "router.scores"):
        for own, mine in zip(
            found(alone, "decision", path), found(run, "decision", path), strict=True
        ):
            assert torch.equal(own, mine)
    maps = [found(each, "activation", "router.output.1") for each in (first, alone, run)]
    for there, without, here in zip(*maps, strict=True):
        assert torch.equal(here, there)
        assert not torch.equal(here, without)
    if choose is by_topk:
        for gradient in found(run, "param_grad", "router.gate.weight"):
            assert bool(gradient.any())


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_makes_the_same_choice_again(record: Any, reentrant: bool) -> None:
    first = record(training())
    replayed = {"replayed": str(first.trace.path)}
    plain = record(training(sign=-1), **replayed)
    again = record(training(sign=-1, reentrant=reentrant), **replayed)

    wanted = found(plain, "param_grad", "router.gate.weight")
    for one, other in zip(wanted, found(again, "param_grad", "router.gate.weight"), strict=True):
        torch.testing.assert_close(other, one)
    assert again.paths("decision") == plain.paths("decision")


def test_a_wrong_choice_fails_though_the_reference_s_is_used_in_its_place(record: Any) -> None:
    reference, noisy = record(training()), record(training(), perturbation=2.0**-23)
    replayed = {"replayed": str(reference.trace.path)}
    right = record(training(), **replayed)
    wrong = record(training(choose=second_best), **replayed)

    accept = ["moved", "gradients", "gradients-compared", "zeros"]  # there is no optimizer here
    assert_equivalent(right.trace, reference.trace, perturbed=noisy.trace, accept=accept)
    with pytest.raises(AssertionError) as failure:
        assert_equivalent(wrong.trace, reference.trace, perturbed=noisy.trace, accept=accept)

    text = " ".join(str(failure.value).split())
    assert "starts at router.output · decision · step 0 · micro-batch 0" in text


def test_a_module_that_chooses_nothing_is_named(record: Any) -> None:
    with pytest.raises(ProgramError, match=r"router is annotated `decision: topk`.*neither"):
        record(training(choose=lambda scores: scores.argsort(dim=-1)[:, :2]))


def test_the_mode_ends_with_a_forward_that_raises(record: Any) -> None:
    def fails(scores: Tensor) -> Tensor:
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        record(training(choose=fails))
    assert torch._C._len_torch_function_stack() == 0
