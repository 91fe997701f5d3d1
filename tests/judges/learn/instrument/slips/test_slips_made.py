"""Slips in parts of a model that run or are made in a forward are noticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps


class Block(nn.Module):
    """A frozen layer, then a checkpointed part, a quiet part and perhaps new layers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Linear(4, 4)
        norm = nn.BatchNorm1d(4) if kind.startswith("norm") else nn.Identity()
        if isinstance(norm, nn.BatchNorm1d) and kind == "norm, still":
            norm.momentum = 0.0
        self.part = nn.Sequential(nn.Linear(4, 4), norm, nn.Tanh())
        self.wide = nn.Linear(4, 64)
        self.head = nn.Linear(64, 2)
        self.extra: nn.Module | None = None
        if kind != "norm":
            self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.kind in ("reentrant", "plain", "norm", "norm, still"):
            x = checkpoint(self.part, x, use_reentrant=self.kind == "reentrant")
        elif self.kind == "quiet":
            with torch.no_grad():
                x = self.part(x)
        elif self.kind == "twice":
            with torch.no_grad():
                self.part(x)
            x = self.part(x)
        else:
            x = self.part(x)
        if self.kind.startswith("made"):
            if self.extra is None:
                self.extra = nn.Linear(4, 4)
            x = self.extra(x)
        found: Tensor = self.head(self.wide(x))
        return found


@pytest.mark.parametrize(
    ("kind", "slips"),
    [
        ("reentrant", ["checkpoint-without-gradient"]),
        ("plain", []),
        ("norm", ["statistics-twice"]),
        ("norm, still", []),
        ("quiet", ["part-without-gradient"]),
        ("twice", []),
        ("made", ["made-after-optimizer"]),
        ("made before", []),
    ],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_parts_of_a_forward(kind: str, slips: list[str]) -> None:
    def program() -> None:
        model = Block(kind)
        if kind == "made before":
            loss_of(model)
        optimizer = sgd(model)
        steps(model, optimizer, 4)

    own = ("statistics-twice", "made-after-optimizer")
    found = slips_of(program)
    assert [each for each in found if each in own or each.endswith("-gradient")] == slips


class Dropped(nn.Module):
    def __init__(self, made: bool) -> None:
        super().__init__()
        self.made, self.first = made, nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        drop = nn.Dropout(0.5) if self.made else self.drop
        found: Tensor = drop(self.first(x))
        return found


@pytest.mark.parametrize("made", [False, True])
def test_a_dropout_that_forward_makes(made: bool) -> None:
    def program() -> None:
        model = Dropped(made)
        steps(model, sgd(model), 2)
        model.eval()
        with torch.no_grad():
            loss_of(model)

    assert slips_of(program) == ["dropout-in-evaluation"] * made


@pytest.mark.parametrize(
    ("layers", "slips"),
    [
        ([nn.Linear(4, 4)] * 2, ["layer-repeated"]),
        ([nn.Linear(4, 4), *[nn.Tanh()] * 2], []),
        ([nn.Linear(4, 4), nn.BatchNorm1d(4, 0.8)], ["eps-as-momentum"]),
        ([nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.99)], ["momentum-inverted"]),
        ([nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.01)], []),
    ],
)
def test_layers_and_norms(layers: list[nn.Module], slips: list[str]) -> None:
    def program() -> None:
        model = nn.Sequential(*layers, nn.Linear(4, 2))
        steps(model, sgd(model), 2)

    assert slips_of(program) == slips


def test_a_net_with_a_norm_has_none_of_these() -> None:
    def program() -> None:
        model = net(norm=True)
        steps(model, sgd(model), 4)

    assert slips_of(program) == []


class Branches(nn.Module):
    """Layers of a list, which all get the input, or each the result of the one before."""

    def __init__(self, repeated: bool, chained: bool) -> None:
        super().__init__()
        one = nn.Linear(4, 4)
        self.layers = nn.ModuleList([one] * 3 if repeated else [nn.Linear(4, 4) for _ in range(3)])
        self.chained = chained

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.chained:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x
        return torch.cat([layer(x) for layer in self.layers], 1)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("chained", [False, True])
def test_a_layer_that_a_list_has_several_times(repeated: bool, chained: bool) -> None:
    def program() -> None:
        model = Branches(repeated, chained)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == ["layer-repeated"] * (repeated and not chained)
