"""A softmax over another dimension than the product with it sums over is noticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.support.learn.slips import sgd, slips_of


class Attention(nn.Module):
    """Attention that is written with operators of tensors, in one head or in two."""

    def __init__(self, dim: int, heads: bool, dropout: float) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.dim, self.heads, self.dropout = dim, heads, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.q(x), self.k(x), self.v(x)]
        if self.heads:
            parts = [each.unflatten(-1, (2, 3)).transpose(1, 2) for each in parts]
        q, k, v = parts
        found: Tensor = self.dropout((q @ k.transpose(-1, -2)).softmax(self.dim)) @ v
        return found


def train(model: nn.Module) -> None:
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 5, 6)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    ("dim", "heads", "wrong"),
    [(-1, False, False), (1, False, True), (0, False, True), (-1, True, False), (1, True, True)],
)
def test_the_dimension_of_attention(dim: int, heads: bool, wrong: bool, dropout: float) -> None:
    found = slips_of(lambda: train(Attention(dim, heads, dropout)))
    assert found == ["softmax-not-summed"] * wrong


class Gate(nn.Module):
    """Experts that are weighted by a gate, in which their product has one row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3), nn.Linear(6, 12)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return weights.flatten(0, 1)[:, None] @ self.experts(x).flatten(0, 1).unflatten(1, (3, 4))


class Linear(nn.Module):
    """Linear attention: keys are normalised over positions, and their transpose is summed."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.q(x).softmax(-1) @ (self.k(x).softmax(1).transpose(1, 2) @ self.v(x))
        return found


@pytest.mark.parametrize("make", [Gate, Linear])
def test_other_products_with_a_softmax(make: type[nn.Module]) -> None:
    assert slips_of(lambda: train(make())) == []
