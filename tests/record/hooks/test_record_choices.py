"""Choices inside a module's forward are recorded with their scores, and replayed by other Runs."""

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
    """Chooses between two groups, then among three options whose scores depend on the group."""
    group = torch.topk(scores[:, :2], k=1).indices
    allowed = scores.clone()
    allowed[:, 1:2] += group
    return torch.argmax(allowed, dim=-1, keepdim=True)


def by_max(scores: Tensor) -> Tensor:
    return scores.max(dim=-1).indices.unsqueeze(-1)


def second_best(scores: Tensor) -> Tensor:
    """Chooses the second and third best: wrong if scores differ by more than rounding."""
    return scores.topk(3, dim=-1).indices[:, 1:]


class Router(nn.Module):
    """Returns probabilities, zero except for the chosen options, and a mask of the chosen."""

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
def test_choices_and_scores_inside_a_module_are_recorded_beside_its_outputs(
    record: Any, choose: Choose
) -> None:
    run = record(training(choose=choose))

    scores, chosen = (found(run, "decision", f"router.{n}") for n in ("scores", "output"))
    assert len(scores) == len(chosen) == 2
    for router_scores, choice, mask in zip(
        scores, chosen, found(run, "activation", "router.output.1"), strict=True
    ):
        assert torch.equal(choice, router_scores.topk(choice.shape[-1]).indices)
        assert torch.equal(mask.nonzero()[:, 1].view_as(choice), choice.sort(-1).values)


def test_several_choices_of_one_forward_are_numbered(record: Any) -> None:
    run = record(training(choose=by_two_calls))

    paths = [path for path in run.paths("decision") if "output" in path]
    assert paths == ["router.output", "router.output.1"] * 2
    assert found(run, "decision", "router.scores")[0].shape == (4, 2)
    assert found(run, "decision", "router.scores.1")[0].shape == (4, 3)


@pytest.mark.parametrize("choose", [by_topk, by_max, by_two_calls])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_replaying_run_records_its_own_choices_and_computes_with_the_replayed_ones(
    record: Any, choose: Choose, reentrant: bool | None
) -> None:
    first = record(training(choose=choose))
    alone = record(training(sign=-1, choose=choose))
    run = record(
        training(sign=-1, choose=choose, reentrant=reentrant), replayed=str(first.trace.path)
    )

    for path in ("router.output", "router.scores"):
        for own, recorded in zip(
            found(alone, "decision", path), found(run, "decision", path), strict=True
        ):
            assert torch.equal(own, recorded)
    maps = [found(each, "activation", "router.output.1") for each in (first, alone, run)]
    for replayed, own, used in zip(*maps, strict=True):
        assert torch.equal(used, replayed)
        assert not torch.equal(used, own)
    if choose is by_topk:
        for gradient in found(run, "param_grad", "router.gate.weight"):
            assert bool(gradient.any())


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_recomputation_uses_the_same_replayed_choices(
    record: Any, reentrant: bool
) -> None:
    first = record(training())
    replayed = {"replayed": str(first.trace.path)}
    plain = record(training(sign=-1), **replayed)
    again = record(training(sign=-1, reentrant=reentrant), **replayed)

    wanted = found(plain, "param_grad", "router.gate.weight")
    for one, other in zip(wanted, found(again, "param_grad", "router.gate.weight"), strict=True):
        torch.testing.assert_close(other, one)
    assert again.paths("decision") == plain.paths("decision")


def test_a_wrong_choice_fails_the_comparison_although_the_reference_choice_is_replayed(
    record: Any,
) -> None:
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


def test_a_topk_decision_without_a_call_of_topk_argmax_or_max_is_refused(record: Any) -> None:
    with pytest.raises(ProgramError, match=r"router is annotated `decision: topk`.*neither"):
        record(training(choose=lambda scores: scores.argsort(dim=-1)[:, :2]))


def test_choices_are_not_intercepted_after_a_forward_that_raises(record: Any) -> None:
    def fails(scores: Tensor) -> Tensor:
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        record(training(choose=fails))
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("name", ["topk", "argmax", "max"])
def test_choices_are_recorded_though_the_program_has_replaced_the_function(
    monkeypatch: pytest.MonkeyPatch, record: Any, name: str
) -> None:
    calls: list[int] = []
    for number in range(2):
        before = getattr(Tensor, name)

        def through(
            scores: Tensor,
            *args: Any,
            _called: Any = before,
            _number: int = number,
            **kwargs: Any,
        ) -> Any:
            calls.append(_number)
            return _called(scores, *args, **kwargs)

        monkeypatch.setattr(Tensor, name, through)
    choose = {
        "topk": by_topk,
        "argmax": lambda scores: scores.argmax(dim=-1, keepdim=True),
        "max": by_max,
    }[name]

    run = record(training(choose=choose))

    assert len(found(run, "decision", "router.output")) == 2
    assert calls == 2 * [1, 0]  # two micro-batches
