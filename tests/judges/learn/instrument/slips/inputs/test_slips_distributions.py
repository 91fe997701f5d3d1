"""Divergences, smoothed labels and advantages that are used wrongly are noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from tests.support.learn.slips import sgd, slips_of, steps

ROWS, CLASSES = 8, 5


def divergence(logits: Tensor, how: str) -> Tensor:
    """The divergence from random opinions."""
    target = torch.randn(ROWS, CLASSES).softmax(-1)
    if how in ("mean", "batchmean", "sum"):
        return F.kl_div(logits.log_softmax(-1), target, reduction=how)
    each = F.kl_div(logits.log_softmax(-1), target, reduction="none")
    if how == "mean of all":
        return each.mean()
    return (each.mean(1) if how == "mean of classes" else each.sum(1)).mean()


@pytest.mark.parametrize("warm", [0, 6])
@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ("batchmean", False),
        ("sum", False),
        ("sum of classes", False),
        ("mean", True),
        ("mean of all", True),
        ("mean of classes", True),
    ],
)
@pytest.mark.filterwarnings("ignore:reduction")
def test_a_divergence_is_a_sum_over_classes(how: str, wrong: bool, warm: int) -> None:
    def program() -> None:
        teacher = nn.Sequential(nn.Linear(4, 2))
        if warm:
            steps(teacher, sgd(teacher), warm)
        model = nn.Linear(4, CLASSES)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            (2.0 * divergence(model(torch.randn(ROWS, 4)), how)).backward()
            optimizer.step()

    assert slips_of(program) == ["divergence-averaged"] * wrong


def test_probabilities_are_noticed_in_a_second_training() -> None:
    def program() -> None:
        teacher = nn.Linear(4, 2)
        steps(teacher, sgd(teacher), 8)
        model = nn.Linear(4, CLASSES)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            given, target = (
                model(torch.randn(ROWS, 4)).softmax(-1),
                torch.full((ROWS, CLASSES), 0.2),
            )
            F.kl_div(given, target, reduction="batchmean").backward()
            optimizer.step()

    assert slips_of(program) == ["loss-activated"]


def targets(kind: str) -> Tensor:
    one = F.one_hot(torch.arange(ROWS) % CLASSES, CLASSES).float()
    if kind == "smooth":
        return 0.9 * one + 0.1 / CLASSES
    if kind == "mixed":
        return 0.7 * one + 0.3 * one.roll(1, 0)
    return torch.randn(ROWS, CLASSES).softmax(-1) if kind == "opinions" else one


@pytest.mark.parametrize(
    ("kind", "smoothing", "wrong"),
    [
        ("smooth", 0.1, True),
        ("smooth", 0.0, False),
        ("plain", 0.1, False),
        ("mixed", 0.1, False),
        ("opinions", 0.1, False),
    ],
)
def test_labels_that_are_smoothed_twice(kind: str, smoothing: float, wrong: bool) -> None:
    def program() -> None:
        model = nn.Linear(4, CLASSES)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            logits = model(torch.randn(ROWS, 4))
            F.cross_entropy(logits, targets(kind), label_smoothing=smoothing).backward()
            optimizer.step()

    assert slips_of(program) == ["smoothed-twice"] * wrong


def policy_loss(log: Tensor, advantage: Tensor, kind: str) -> Tensor:
    if kind == "clipped":
        ratio = (log - log.detach()).exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    return -(log * advantage).mean()


@pytest.mark.parametrize("kind", ["plain", "clipped"])
@pytest.mark.parametrize("detached", [True, False])
def test_the_loss_of_an_actor_does_not_train_its_critic(kind: str, detached: bool) -> None:
    def program() -> None:
        actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)
        optimizer = sgd(nn.ModuleList([actor, critic]))
        for _ in range(2):
            state, reward = torch.randn(ROWS, 4), torch.randn(ROWS)
            policy = Categorical(logits=actor(state))
            log = policy.log_prob(policy.sample())
            error = reward - critic(state).squeeze(-1)
            advantage = error.detach() if detached else error
            loss = policy_loss(log, advantage, kind) + 0.5 * error.square().mean()
            optimizer.zero_grad()
            (loss - 0.01 * policy.entropy().mean()).backward()
            optimizer.step()

    assert slips_of(program) == ["advantage-graded"] * (not detached)


def test_a_temperature_that_learns_by_the_entropy_is_no_advantage() -> None:
    def program() -> None:
        actor, weight = nn.Linear(4, 3), nn.Parameter(torch.zeros(()))
        optimizer: Any = torch.optim.SGD([*actor.parameters(), weight], lr=0.1)
        for _ in range(2):
            log = actor(torch.randn(ROWS, 4)).log_softmax(-1)
            loss = (log.exp() * (weight.exp() * log - torch.randn(ROWS, 3))).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert slips_of(program) == []
