"""Slips in the weights with which training begins are noticed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.support.learn.slips import sgd, slips_of


def trained(model: nn.Module) -> None:
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(5, 6)
        if isinstance(model, nn.TransformerEncoder):
            x = x[:, None]
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("new", []),
        ("copied", ["layers-alike"]),
        ("seeded", ["layers-alike", "seeded-again"]),
        ("identity", []),
        ("zero", []),
        ("one number", ["constant-weight"]),
    ],
)
def test_how_layers_begin(kind: str, slips: list[str]) -> None:
    def program() -> None:
        first = nn.Linear(6, 6)
        second = copy.deepcopy(first) if kind == "copied" else nn.Linear(6, 6)
        model = nn.Sequential(first, nn.Tanh(), second)
        for layer in (first, second):
            if kind == "seeded":
                torch.manual_seed(3)
                nn.init.normal_(layer.weight)
            elif kind == "identity":
                nn.init.eye_(layer.weight)
        if kind in ("zero", "one number"):
            nn.init.constant_(second.weight, 0.1 * (kind == "one number"))
        trained(model)

    found = slips_of(program)
    assert [each for each in found if each != "seeded-again"] == slips[:1]


def test_the_layers_that_torch_copies_are_no_slip() -> None:
    def program() -> None:
        layer = nn.TransformerEncoderLayer(6, 2, 8)
        trained(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))

    assert slips_of(program) == []


def test_a_copy_that_is_not_trained_is_no_slip() -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(6, 6))
        optimizer, copied = sgd(model), copy.deepcopy(model)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(5, 6)
            with torch.no_grad():
                target = copied(x)
            (model(x) - target).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == []


@pytest.mark.parametrize(
    ("row", "slips"), [("zero", []), ("drawn", ["padding-row"]), ("drawn and loaded", [])]
)
def test_the_row_of_the_padding(row: str, slips: list[str]) -> None:
    def program() -> None:
        embed = nn.Embedding(7, 4, padding_idx=0)
        if row != "zero":
            nn.init.normal_(embed.weight)
        if row == "drawn and loaded":
            embed.load_state_dict({"weight": embed.weight.detach().clone()})
        optimizer = sgd(embed)
        for _ in range(2):
            optimizer.zero_grad()
            embed(torch.arange(5)).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == slips
