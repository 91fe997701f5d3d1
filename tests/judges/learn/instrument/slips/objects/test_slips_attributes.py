"""Attributes without an effect, and parameters that nobody has, are noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.learn.slips import net, sgd, slips_of, steps


@pytest.mark.parametrize(
    ("name", "of", "wrong"),
    [
        ("require_grad", "parameter", True),
        ("requires_gradient", "parameter", True),
        ("require_grad", "module", True),
        ("main_grad", "parameter", False),
        ("required", "module", False),
    ],
)
def test_a_flag_whose_name_is_misspelt(name: str, of: str, wrong: bool) -> None:
    def program() -> None:
        model: Any = net()
        optimizer = sgd(model)
        steps(model, optimizer, 2)
        setattr(model[0].weight if of == "parameter" else model[0], name, False)
        steps(model, optimizer, 2)

    assert slips_of(program) == ["flag-misspelt"] * wrong


@pytest.mark.parametrize("where", ["optimizer", "group", "known", "lr of a group"])
def test_a_rate_that_is_set_where_it_has_no_effect(where: str) -> None:
    def program() -> None:
        model = net()
        optimizer: Any = sgd(model)
        steps(model, optimizer, 2)
        if where == "optimizer":
            optimizer.lr = 0.01
        if where == "known":
            optimizer.lr = 0.1  # what it has
        optimizer.param_groups[0]["learning_rate" if where == "group" else "lr"] = 0.01
        if where == "known":
            optimizer.param_groups[0]["lr"] = 0.1
        if where == "optimizer":
            optimizer.param_groups[0]["lr"] = 0.1
        steps(model, optimizer, 2)

    assert slips_of(program) == ["rate-without-effect"] * (where in ("optimizer", "group"))


class Scaled(nn.Module):
    """A layer with a scale, which is a parameter, made from one that nobody has, or computed."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        start = nn.Parameter(torch.ones(4))
        if how == "parameter":
            self.scale: Tensor = start
        elif how == "converted":
            self.scale = start.double()
        else:  # as by weight norm
            self.inner = start
            self.scale = self.inner * 1.0
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "computed":
            self.scale = self.inner * 1.0
        found: Tensor = self.layer(x) * self.scale.float()
        return found


@pytest.mark.parametrize(
    ("how", "slips"),
    [("parameter", []), ("converted", ["parameter-unregistered"]), ("computed", [])],
)
def test_a_parameter_that_is_converted_as_it_is_set(how: str, slips: list[str]) -> None:
    def program() -> None:
        model = Scaled(how)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward(retain_graph=True)
            optimizer.step()

    assert slips_of(program) == slips


@pytest.mark.parametrize("kind", ["replaced", "cast", "never tied"])
def test_a_tie_that_is_broken_in_training(kind: str) -> None:
    def program() -> None:
        table, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        if kind != "never tied":
            head.weight = table.weight
        reads = nn.Sequential(table, head)
        for part in range(2):
            if part and kind == "replaced":
                head.weight = nn.Parameter(head.weight.detach() * 1.1)
            if part and kind == "cast":
                reads.double()
            optimizer = sgd(reads)
            for _ in range(3):
                optimizer.zero_grad()
                reads(torch.arange(7)).square().mean().backward()
                optimizer.step()

    assert slips_of(program) == ["ties-broken"] * (kind == "replaced")
