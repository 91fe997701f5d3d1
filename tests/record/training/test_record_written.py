"""Localisation Runs record the lines that change gradients after a backward, and the factor."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.trace.facts import Site
from pytest_trainsafe.trace.run_spec import Rewrite

X = torch.linspace(-1, 1, 12).reshape(4, 3) ** 3

REWRITE = {"activation 0.output 0": Rewrite((4, 2), 0.0, 1.0)}

Change = Callable[[list[torch.Tensor]], Any]


def train(inside: Change | None = None, after: Change | None = None) -> Any:
    """Two steps of two micro-batches, which change gradients inside of these or after them."""

    def run(ctx: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).to(ctx.dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        for _ in range(2):
            with ctx.step():
                optimizer.zero_grad()
                for index in ctx.microbatches(2):
                    with ctx.microbatch(index):
                        model(X.to(ctx.dtype)).square().sum().backward()
                        gradients = [p.grad for p in model.parameters() if p.grad is not None]
                        if inside is not None:
                            inside(gradients)
                if after is not None:
                    after(gradients)
                optimizer.step()

    return run


def writes(run: Any) -> list[Site]:
    return [site for site in run.rank.events_of(Site) if site.what == "write"]


def divide(gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        gradient.div_(4)


def double(gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        gradient *= torch.tensor(2.0)


def triple(gradients: list[torch.Tensor]) -> None:
    torch._foreach_mul_(gradients, 3.0)


def mask(gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        gradient.mul_(torch.ones_like(gradient))


def shift(gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        gradient.add_(1.0)


@pytest.mark.parametrize(
    ("change", "name", "factor"),
    [
        (divide, "div_", 0.25),
        (double, "mul_", 2.0),
        (triple, "_foreach_mul_", 3.0),
        (mask, "mul_", 0.0),
        (shift, "add_", 0.0),
    ],
)
@pytest.mark.parametrize("place", ["inside", "after"])
def test_a_change_of_gradients_is_recorded_once_with_its_line_and_factor(
    record: Any, place: str, change: Change, name: str, factor: float
) -> None:
    found = writes(record(train(**{place: change}), rewrite=REWRITE))
    assert [(site.name, site.factor, site.user) for site in found] == [(name, factor, "")]
    file, _, line = found[0].at.rpartition(":")
    assert "gradient" in linecache.getline(file, int(line))


def test_a_factor_that_differs_in_each_step_is_recorded_once(record: Any) -> None:
    """Clipping multiplies by another number in every step."""
    numbers = iter(range(2, 20))
    found = writes(
        record(train(after=lambda gs: [g.mul_(next(numbers)) for g in gs]), rewrite=REWRITE)
    )
    assert [site.factor for site in found] == [2.0]


@pytest.mark.parametrize(("place", "found"), [("inside", ["div_"]), ("after", [])])
def test_a_change_before_a_later_backward_of_the_step_is_marked_so(
    record: Any, place: str, found: list[str]
) -> None:
    run = record(train(**{place: divide}), rewrite=REWRITE)
    early = [site for site in run.rank.events_of(Site) if site.what == "early"]
    assert [site.name for site in early] == found
    assert {site.at for site in early} <= {site.at for site in writes(run)}


def test_a_training_that_changes_no_gradient_records_no_line(record: Any) -> None:
    assert writes(record(train(), rewrite=REWRITE)) == []


def test_other_runs_record_no_changes(record: Any) -> None:
    assert writes(record(train(after=divide))) == []


def cleared(run: Any) -> list[str]:
    found = [site.at for site in run.rank.events_of(Site) if site.what == "clear"]
    lines = (at.rpartition(":") for at in found)
    return [linecache.getline(file, int(line)).strip() for file, _, line in lines]


def loop(between: Any) -> Any:
    """Steps of two micro-batches; `between` is called before each with model and optimizer."""

    def run(ctx: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).to(ctx.dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        for _ in range(2):
            with ctx.step():
                optimizer.zero_grad()
                for index in ctx.microbatches(2):
                    with ctx.microbatch(index):
                        between(model, optimizer)
                        model(X.to(ctx.dtype)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    return run


def by_optimizer(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()


def by_zeros(model: Any, optimizer: Any) -> None:
    model.zero_grad(set_to_none=False)


def by_hand(model: Any, optimizer: Any) -> None:
    model[0].weight.grad = None


@pytest.mark.parametrize(
    ("between", "line"),
    [
        (by_optimizer, "optimizer.zero_grad()"),
        (by_zeros, "model.zero_grad(set_to_none=False)"),
        (by_hand, "model[0].weight.grad = None"),
    ],
)
def test_a_line_that_clears_gradients_between_two_backwards_is_recorded(
    record: Any, between: Any, line: str
) -> None:
    assert cleared(record(loop(between), dtype="float64", rewrite=REWRITE)) == [line]


def test_lines_that_clear_gradients_before_or_after_all_backwards_are_not_recorded(
    record: Any,
) -> None:
    run = record(loop(lambda model, optimizer: None), dtype="float64", rewrite=REWRITE)
    assert cleared(run) == []
    assert cleared(record(loop(by_optimizer), dtype="float64")) == []
