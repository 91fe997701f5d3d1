"""A parameter whose gradient is always zero is noticed, and not one that only begins so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.support.learn.slips import sgd, slips_of, steps


class Gated(nn.Module):
    """A layer with a gate, an adapter, or several experts of which one is chosen."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer, self.gate = nn.Linear(4, 4), nn.Linear(4, 3, bias=False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        nn.init.zeros_(self.up.weight)
        if kind == "both zero":
            nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        top = weights.max(-1, keepdim=True).values
        if self.kind == "normalised":
            top = top / top
        found: Tensor = self.layer(x) * top + self.up(self.down(x))
        chosen = torch.zeros_like(found)
        for at, expert in enumerate(self.experts):  # the last one is never chosen
            chosen = chosen + expert(x) * float(at < 2)
        return found + chosen


@pytest.mark.parametrize("kind", ["normalised", "both zero", "healthy"])
@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_a_gradient_that_is_always_zero(kind: str) -> None:
    def program() -> None:
        model = Gated(kind)
        steps(model, sgd(model), 8)

    assert slips_of(program) == ["gradient-always-zero"] * (kind != "healthy")
