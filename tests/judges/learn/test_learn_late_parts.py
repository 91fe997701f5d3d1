"""Copies of weights, late parts, moments that rest and states that fit break no learned rule."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from tests.support.learn.observed_programs import checked, learned, said
from tests.support.learn.slips import net, steps


def copies(kind: str) -> None:
    """Trains a model in bfloat16 by float32 copies, by itself, or by copies of another model."""
    model = net().bfloat16()
    source = net() if kind == "of another" else model
    every = [each.detach().float() for each in source.parameters()]
    held = [nn.Parameter(each) if kind == "of another" else each.requires_grad_() for each in every]
    optimizer = torch.optim.SGD(model.parameters() if kind == "none" else held, lr=0.1)
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(8, 4).bfloat16()).float().square().mean().backward()
        for own, copy in zip(model.parameters(), held, strict=True):
            assert own.grad is not None
            if kind != "none":
                copy.grad = own.grad.float()
        optimizer.step()
        if kind == "copies":
            with torch.no_grad():
                for own, copy in zip(model.parameters(), held, strict=True):
                    own.copy_(copy)


def test_a_step_of_float32_copies_updates_no_parameter() -> None:
    rules = [
        each
        for each in learned(partial(copies, "none"), "contain")
        if each.claim["variable"] == "torch.nn.Parameter" and each.claim["attribute"] == "data"
        if each.claim["change"] == "updated" and each.claim.text("api").endswith("step")
    ]
    assert rules
    assert said(checked(partial(copies, "copies"), rules)) == []


class Widened(nn.Module):
    """A layer, and from some step on another one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 2)
        self.more: nn.Module | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x)
        return found if self.more is None else found + self.more(x)


def widened(frozen: bool = False) -> None:
    """Trains a layer, and then one that is added to it."""
    model = Widened()
    if frozen:
        model.base.bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps(model, optimizer, 2)
    model.more = nn.Linear(4, 2)
    optimizer.add_param_group({"params": model.more.parameters()})
    steps(model, optimizer, 2)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_part_that_is_made_later_is_not_missing_before(frozen: bool) -> None:
    rules = [each for each in learned(widened, "setup") if each.claim["form"] == "parameter"]
    assert {each.claim["object"] for each in rules} == {"model.base.weight", "model.base.bias"}
    assert len(said(checked(partial(widened, frozen), rules))) == frozen


def test_no_rule_says_that_moments_change_in_every_step() -> None:
    def train() -> None:
        model = net()
        steps(model, torch.optim.Adam(model.parameters(), lr=0.01), 4)

    rules = learned(train, "periodic")
    assert rules
    assert {
        each.claim["attribute"] for each in rules if "state" in each.claim.text("variable")
    } <= {"step"}


def test_no_rule_says_that_a_loaded_state_differs_from_that_of_the_model() -> None:
    def train() -> None:
        model = net()
        best = {name: each.clone() for name, each in model.state_dict().items()}
        for _ in range(2):
            steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
            model.load_state_dict(best)

    rules = learned(train, "contain")
    assert rules
    assert not [each for each in rules if "load_state_dict" in each.claim.text("api")]
