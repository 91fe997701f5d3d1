"""A program whose losses are computed by other operators than before is noticed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.judges.learn.inference.learn import learn
from tests.support.learn.observed_programs import RULES, Net, checked, observed


def train(seed: int = 0, layers: int = 2, kind: str = "") -> None:
    """A small training, whose data and depth vary."""
    torch.manual_seed(seed)
    model = nn.ModuleList([Net() for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        given = torch.randn(4 + seed, 4)
        out: Tensor = given
        for layer in model:
            out = layer(out)
        if kind == "viewed":
            out = out.t().reshape(out.shape)
        loss = out.square().mean()
        if kind == "no second term":
            loss = loss * 1.0
        else:
            loss = loss + 0.1 * out.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module", name="rules")
def _rules() -> list[object]:
    runs = [observed(partial(train, seed), "own", f"seed {seed}") for seed in (1, 2)]
    found = [each for each in learn(runs).invariants if each.claim.relation == "graph"]
    assert len(found) == 1
    return list(found)


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, False),
        ({"seed": 3, "layers": 4}, False),
        ({"kind": "viewed"}, True),
        ({"kind": "no second term"}, True),
    ],
)
def test_the_operators_of_a_loss(changed: dict[str, Any], broken: bool, rules: list[Any]) -> None:
    found = checked(partial(train, **changed), rules)
    assert bool(found.violations) == broken
    if broken:
        first = found.violations[0]
        assert "Square" in str(first.detail) or "Pow" in str(first.detail)
        assert RULES["graph"].explain(first.invariant.claim).causes
