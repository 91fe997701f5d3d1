"""The gradients and states of master copies are those of the tensors that the optimizer updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Flat:
    """An optimizer of one flat master for all parameters, of which this rank holds a range."""

    def __init__(self, model: nn.Module, ranges: bool) -> None:
        self.parameters = list(model.parameters())
        flat = torch.cat([each.detach().reshape(-1) for each in self.parameters]).float()
        #: Without the first element, which another rank would hold.
        self.first = 1 if ranges else 0
        self.master = nn.Parameter(flat[self.first :].clone())
        self.inner = torch.optim.AdamW([self.master], lr=0.125)
        end = 0
        for each in self.parameters:
            start, end = end, end + each.numel()
            held = max(start, self.first)
            part = self.master.data[held - self.first : end - self.first]
            if ranges:
                each.main_param_range = (held - start, end - start)  # type: ignore[attr-defined]
            each.main_param = part if ranges else part.view(each.shape)  # type: ignore[attr-defined]

    def step(self) -> None:
        gradients = [each.grad for each in self.parameters]
        flat = torch.cat([each.reshape(-1) for each in gradients if each is not None])
        self.master.grad = 0.5 * flat[self.first :].float()
        self.inner.step()
        end = 0
        for each in self.parameters:
            start, end = end, end + each.numel()
            held = max(start, self.first)
            part = self.master.data[held - self.first : end - self.first]
            each.data.view(-1)[held - start :] = part.to(each.dtype)


def train(model: nn.Module, optimizer: Flat, watched: Any, clips: Any = None) -> Any:
    def run(ctx: Context) -> None:
        ctx.watch(model, watched)
        for _ in range(2):
            with ctx.step():
                with ctx.microbatch(0):
                    model(X.to(torch.bfloat16)).square().sum().backward()
                if clips is not None:
                    clips()
                optimizer.step()
                model.zero_grad()

    return run


@pytest.mark.parametrize("ranges", [False, True])
def test_the_parts_of_a_flat_master_are_recorded_as_each_parameters(
    record: Any, ranges: bool
) -> None:
    model = nn.Linear(3, 2).bfloat16()
    optimizer = Flat(model, ranges)
    run = record(train(model, optimizer, optimizer.inner))
    moments = optimizer.inner.state[optimizer.master]["exp_avg"]
    gradients = optimizer.master.grad
    assert gradients is not None
    weight, skipped = 6 - optimizer.first, optimizer.first
    for kind, name, whole in (
        ("main_grad", "weight", gradients),
        ("optimizer_state", "weight.exp_avg", moments),
    ):
        recorded = run.get(kind, name, step=1)
        assert recorded.dtype == torch.float32
        assert torch.equal(recorded.reshape(-1), whole[:weight])
        bias = run.get(kind, name.replace("weight", "bias"), step=1)
        assert torch.equal(bias, whole[weight:])
    assert run.get("param_grad", "weight").numel() == weight + skipped
    assert run.get("optimizer_state", "bias.step", step=1) == 2


def test_the_gradient_of_a_master_counts_and_not_the_parameters_own(record: Any) -> None:
    """A wrapper reduces into the master's gradient, and leaves the rank's own as it is."""
    model = nn.Linear(3, 2, bias=False).bfloat16()
    master = nn.Parameter(model.weight.detach().float())
    model.weight.main_param = master  # type: ignore[attr-defined]
    inner = torch.optim.SGD([master], lr=0.125)

    def run(ctx: Context) -> None:
        ctx.watch(model, inner)
        with ctx.step():
            with ctx.microbatch(0):
                model(X.to(torch.bfloat16)).square().sum().backward()
            assert model.weight.grad is not None
            master.grad = 3 * model.weight.grad.float()
            nn.utils.clip_grad_norm_([master], 0.5)
            inner.step()

    found = record(run)
    assert model.weight.grad is not None
    assert torch.equal(found.get("unclipped_grad", "weight"), 3 * model.weight.grad.float())
    assert master.grad is not None
    assert torch.equal(found.get("main_grad", "weight"), master.grad)


def test_a_clip_of_the_parameters_is_not_taken_for_one_of_their_masters(record: Any) -> None:
    """The masters then still have the gradients of the previous step."""
    model = nn.Linear(3, 2).bfloat16()
    optimizer = Flat(model, ranges=False)
    before: list[torch.Tensor] = []

    def clip() -> None:
        assert model.weight.grad is not None
        before.append(model.weight.grad.clone())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    run = record(train(model, optimizer, optimizer.inner, clip))
    for step in range(2):
        assert torch.equal(run.get("unclipped_grad", "weight", step=step), before[step])


def test_a_main_param_that_no_optimizer_updates_leaves_the_parameters_gradient(record: Any) -> None:
    model = nn.Linear(3, 2, bias=False)
    model.weight.main_param = nn.Parameter(torch.ones(2, 3))  # type: ignore[attr-defined]
    model.weight.main_param.grad = torch.full((2, 3), 7.0)  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)

    def run(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        with ctx.step():
            with ctx.microbatch(0):
                model(X).square().sum().backward()
            optimizer.step()

    found = record(run)
    assert model.weight.grad is not None
    assert torch.equal(found.get("main_grad", "weight"), model.weight.grad)
