"""Slips in what a loss gets are noticed, and not in the program without them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.learn.slips import net, sgd, slips_of

ROWS = 8
LABELS = torch.arange(ROWS) % 2


def training(loss: Callable[[Tensor], Tensor], out: int = 2) -> Callable[[], None]:
    """Three steps of a network with `out` results for each row."""

    def program() -> None:
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, out))
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss(model(torch.randn(ROWS, 4))).backward()
            optimizer.step()

    return program


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("loss", "slips"),
    [
        (lambda y: F.mse_loss(y, torch.ones(ROWS)), ["loss-broadcast"]),
        (lambda y: F.mse_loss(y.squeeze(1), torch.ones(ROWS)), []),
        (lambda y: F.l1_loss(torch.ones(ROWS), y), ["loss-broadcast"]),
        (lambda y: F.smooth_l1_loss(y, torch.ones(1)), []),
        (lambda y: ((y - torch.ones(ROWS)) ** 2).mean(), ["loss-broadcast"]),
        (lambda y: (torch.ones(ROWS, 1) - y.squeeze(1)).abs().mean(), ["loss-broadcast"]),
        (lambda y: (y - torch.ones(ROWS, 1)).square().mean(), []),
        (lambda y: (y[:, 0, None] - torch.ones(ROWS)).square().mean(), []),  # meant: unsqueezed
        (lambda y: (y - y.T).square().mean(), []),  # meant: two predictions
        (lambda y: -(y.tanh() * torch.arange(8.0)).mean(), ["loss-broadcast"]),
        (lambda y: -torch.minimum(y.exp() * LABELS, y.exp()).mean(), ["loss-broadcast"]),
        (lambda y: -(y.tanh().squeeze(1) * torch.arange(8.0)).mean(), []),
        (lambda y: (y.tanh() * torch.ones(ROWS, ROWS)).mean(), []),  # meant: a mask of pairs
    ],
)
def test_predictions_that_broadcast_against_targets(
    loss: Callable[[Tensor], Tensor], slips: list[str]
) -> None:
    assert slips_of(training(loss, 1)) == slips


@pytest.mark.parametrize(
    ("loss", "slips"),
    [
        (lambda y: F.cross_entropy(y, LABELS), []),
        (lambda y: F.cross_entropy(y.softmax(1), LABELS), ["loss-activated"]),
        (lambda y: F.cross_entropy(y.softmax(1).view(ROWS, 2), LABELS), ["loss-activated"]),
        (lambda y: nn.CrossEntropyLoss()(y.relu(), LABELS), ["loss-activated"]),
        (lambda y: F.cross_entropy(y.log_softmax(1), LABELS), []),  # the same loss
        (lambda y: F.nll_loss(y.log_softmax(1), LABELS), []),
        (lambda y: F.nll_loss(y.softmax(1), LABELS), ["loss-activated"]),
        (lambda y: F.nll_loss(y, LABELS), ["loss-activated"]),
        (lambda y: F.binary_cross_entropy_with_logits(y, torch.ones(ROWS, 2)), []),
        (
            lambda y: F.binary_cross_entropy_with_logits(y.sigmoid(), torch.ones(ROWS, 2)),
            ["loss-activated"],
        ),
        (lambda y: F.binary_cross_entropy(y.sigmoid(), torch.ones(ROWS, 2)), []),
        (lambda y: _kl(y.log_softmax(1)), []),
        (lambda y: _kl(y.softmax(1)), ["loss-activated"]),
        (lambda y: F.kl_div(y.log_softmax(1), torch.full((ROWS, 2), -0.7)), ["loss-activated"]),
    ],
)
@pytest.mark.filterwarnings("ignore:reduction")
def test_activations_before_a_loss(loss: Callable[[Tensor], Tensor], slips: list[str]) -> None:
    assert slips_of(training(loss)) == slips


def _kl(given: Tensor) -> Tensor:
    return F.kl_div(given, torch.full((ROWS, 2), 0.5), reduction="batchmean")


@pytest.mark.parametrize(
    ("target", "slips"),
    [(255.0, ["target-outside"]), (-1.0, ["target-outside"]), (1.0, []), (0.1, [])],
)
def test_targets_of_a_binary_cross_entropy(target: float, slips: list[str]) -> None:
    targets = torch.full((ROWS, 2), target)
    program = training(lambda y: F.binary_cross_entropy_with_logits(y, targets))
    assert slips_of(program) == slips


@pytest.mark.parametrize(("target", "slips"), [(0.0, ["target-outside"]), (-1.0, [])])
def test_targets_of_a_ranking(target: float, slips: list[str]) -> None:
    targets = torch.full((ROWS,), target)
    program = training(lambda y: F.margin_ranking_loss(y[:, 0], y[:, 1], targets))
    assert slips_of(program) == slips


@pytest.mark.parametrize(
    ("graph", "between", "slips"),
    [(True, False, []), (False, False, ["penalty-without-graph"]), (False, True, [])],
)
def test_a_penalty_on_a_gradient(graph: bool, between: bool, slips: list[str]) -> None:
    """A gradient without a graph may change the inputs, as adversarial training does."""

    def program() -> None:
        model = net(5)
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(ROWS, 4, requires_grad=True)
            total = model(x).sum()
            (slope,) = torch.autograd.grad(total, x, retain_graph=True, create_graph=graph)
            moved = model((x + slope).detach()).sum() if between else slope.square().mean()
            (total + moved).backward()
            optimizer.step()

    assert slips_of(program) == slips
