"""A part of a training that stays in evaluation mode is noticed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.learn.slips import net, slips_of


def rounds(one: nn.Module, other: nn.Module, count: int = 3) -> None:
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        x = torch.randn(8, 4)
        (one(x) - other(x)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("back", ["both", "one", "none"])
def test_one_of_two_models_stays_in_evaluation_mode(back: str) -> None:
    def program() -> None:
        one, other = net(dropout=0.2), net(dropout=0.2)
        rounds(one, other)
        one.eval()
        other.eval()
        if back != "none":
            one.train()
        if back == "both":
            other.train()
        rounds(one, other)

    assert slips_of(program) == ["left-in-evaluation"] * (back == "one")


@pytest.mark.parametrize("frozen", [False, True])
def test_a_part_that_never_trains_may_be_in_evaluation_mode(frozen: bool) -> None:
    def program() -> None:
        one, other = net(dropout=0.2), net(dropout=0.2)
        if frozen:
            rounds(one, other)
            other.requires_grad_(False)
        other.eval()
        rounds(one, other)

    assert "left-in-evaluation" not in slips_of(program)


def test_an_attack_in_evaluation_mode_before_each_step() -> None:
    def program() -> None:
        one, other = net(dropout=0.2), net(dropout=0.2)
        optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
        for _ in range(4):
            x = torch.randn(8, 4, requires_grad=True)
            other.eval()
            moved = torch.autograd.grad(other(x).square().mean(), x)[0].sign()
            other.train()
            optimizer.zero_grad()
            given = x.detach() + 0.1 * moved
            (one(given) - other(given)).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == []
