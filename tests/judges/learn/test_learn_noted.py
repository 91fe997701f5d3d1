"""Another constant of a loss, and another change of gradients, is noticed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.invariant import Invariant
from tests.support.learn.observed_programs import checked, observed, said

LEVELS = (torch.arange(40) / 39.0).cos()


class Weather(nn.Module):
    """Two encoders of one kind, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.wind, self.rain = nn.Linear(4, 6), nn.Embedding(9, 6)
        self.head = nn.Linear(6, 1)
        self.alone = nn.Parameter(torch.ones(6))

    def forward(self, given: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wind, rain = self.wind(given), self.rain(kinds)
        return wind, rain, self.head(wind * self.alone + rain).squeeze(1)


def loss_of(model: Weather, fault: str, step: int) -> Tensor:
    """Weighted errors, and two penalties that differ in what they follow from."""
    wind, rain, guess = model(torch.randn(40, 4), torch.randint(9, (40,)))
    level = LEVELS[torch.randint(40, (40,))]
    weight = level.clamp(max=0.7) if fault == "weight" else level
    error = (guess - torch.randn(40)).square()
    near, far = (wind.detach() - rain).square().mean(), (rain.detach() - wind).square().mean()
    first, second = (far, near) if fault == "swapped" else (near, far)
    factor = 0.5 if fault == "factor" else 0.25
    grows = 1.0 + 0.3 * step
    total: Tensor = (weight * error).mean() + factor * first + second
    return total + grows * model.alone.abs().mean()


def clips(model: nn.Module, most: float) -> None:
    """A clipping of the program's own, which is seldom needed."""
    total = torch.stack([each.grad.norm() for each in model.parameters() if each.grad is not None])
    if float(total.norm()) > most:
        for each in model.parameters():
            if each.grad is not None:
                each.grad.mul_(most / total.norm())


def train(seed: int = 0, fault: str = "", most: float = 1e9) -> None:
    """A training whose last parameter is shared by three halls, so its gradient is divided."""
    torch.manual_seed(seed)
    model = Weather()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, fault, step).backward()
        if fault != "undivided":
            assert model.alone.grad is not None
            model.alone.grad /= 3
        clips(model, most)
        optimizer.step()


def graphs(seed: int = 0, fault: str = "") -> None:
    """Messages between the nodes of several graphs in one batch."""
    torch.manual_seed(seed)
    node, message, head = nn.Embedding(5, 6), nn.Linear(6, 6), nn.Linear(6, 1)
    model = nn.ModuleList([node, message, head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        sizes = torch.randint(3, 7, (6,)).tolist()
        starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        shift = [0] * 6 if fault == "unshifted" else starts
        edges = torch.cat([torch.arange(size) + at for size, at in zip(sizes, shift, strict=False)])
        given = node(torch.randint(5, (starts[-1],)))
        heard = given + torch.zeros_like(given).index_add(0, edges, message(given[edges]))
        optimizer.zero_grad()
        head(heard).square().mean().backward()
        optimizer.step()


def rules_of(program: Callable[..., None]) -> list[Invariant]:
    """The rules of this relation, of two seeds."""
    runs = [observed(partial(program, seed), "own", f"seed {seed}") for seed in (1, 2)]
    return [each for each in learn(runs).invariants if each.claim.relation == "noted"]


@pytest.fixture(scope="module", name="rules")
def _rules() -> list[Invariant]:
    return rules_of(train)


@pytest.mark.parametrize(
    ("fault", "about"),
    [
        ("factor", "number of Mul"),
        ("swapped", "order in the graph"),
        ("weight", "frequent weights of Mul"),
        ("undivided", "factor of the gradient of model.alone between the backward and the step"),
    ],
)
def test_what_is_computed_otherwise_is_found(
    fault: str, about: str, rules: list[Invariant]
) -> None:
    found = said(checked(partial(train, fault=fault), rules))
    assert any(about in each for each in found), found


@pytest.mark.parametrize("given", [{"seed": 0}, {"seed": 5}, {"seed": 6, "most": 1e-3}])
def test_another_seed_and_a_clipping_that_is_needed_once_are_no_violations(
    given: dict[str, Any], rules: list[Invariant]
) -> None:
    assert checked(partial(train, **given), rules).violations == ()


def test_a_number_that_follows_a_schedule_has_no_rule(rules: list[Invariant]) -> None:
    names = [each.claim.text("about") for each in rules]
    assert sum(name.startswith("number of Mul") for name in names) == 1
    assert not any(name.startswith("order and constants") for name in names)


def test_indices_that_do_not_reach_the_last_graph_of_a_batch_are_found() -> None:
    rules = rules_of(graphs)
    found = said(checked(partial(graphs, 0, "unshifted"), rules))
    assert any("reach the last row" in each for each in found)
    assert checked(partial(graphs, 3), rules).violations == ()


def test_nothing_is_read_where_a_checkpoint_would_compute_it_again() -> None:
    ran: list[int] = []

    def halved(given: Tensor) -> Tensor:
        ran.append(1)
        return given.exp() * torch.full((8, 4), 0.5)

    def recomputed() -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            hidden = checkpoint(halved, model(torch.randn(8, 4)), use_reentrant=False)
            assert isinstance(hidden, Tensor)
            F.mse_loss(hidden, torch.zeros(8, 4)).backward()
            optimizer.step()

    observed(recomputed)
    assert len(ran) == 6
