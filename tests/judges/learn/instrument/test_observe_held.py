"""Facts about an optimizer's parameters are recorded with its steps and calls that take it."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe import observe
from pytest_trainsafe.judges.learn.events.events import Plain
from pytest_trainsafe.judges.learn.instrument.facts import Objects
from tests.support.learn.observing import Kept, Net


def _held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Plain]:
    """The facts recorded with the second optimizer step."""
    with observe() as observation:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    step = Kept.of(observation.table).called("torch.optim.SGD.step")[-1]
    names = ("has_gradients", "stale", "frozen", "zero_rate")
    return {name: step.values[f"self.{name}"].plain for name in names}


def test_an_optimizer_of_the_models_parameters_has_no_stale_or_frozen_parameters() -> None:
    net = Net()
    found = _held(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert found == {"has_gradients": True, "stale": 0, "frozen": 0, "zero_rate": False}


def test_parameters_of_another_model_without_gradients_are_stale() -> None:
    net = Net()
    found = _held(copy.deepcopy(net), torch.optim.SGD(net.parameters(), lr=0.1))
    assert found == {"has_gradients": False, "stale": 4, "frozen": 0, "zero_rate": False}


@pytest.mark.parametrize(("reset", "stale"), [((1,), 0), ((0, 1), 2)])
def test_a_parameter_that_rests_in_a_step_is_stale_only_if_all_do(
    reset: tuple[int, ...], stale: int
) -> None:
    """No module that is called has them, such as the weights of losses of several tasks."""
    weights = [nn.Parameter(torch.ones(())) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    with observe() as observation:
        for resting in ((), reset):
            for number, each in enumerate(weights):
                each.grad = None if number in resting else torch.ones(())
            optimizer.step()
    step = Kept.of(observation.table).called("torch.optim.SGD.step")[-1]
    assert step.values["self.stale"].plain == stale


def test_master_parameters_with_their_own_gradients_are_not_stale() -> None:
    net = Net()
    masters = [each.detach().clone().requires_grad_() for each in net.parameters()]
    for each in masters:
        each.grad = torch.ones_like(each)
    found = _held(net, torch.optim.SGD(masters, lr=0.1))
    assert found == {"has_gradients": False, "stale": 0, "frozen": 0, "zero_rate": False}


def test_parameters_frozen_before_the_optimizer_was_made_are_not_counted_as_frozen() -> None:
    net = Net()
    net.one.requires_grad_(False)
    found = _held(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert found == {"has_gradients": True, "stale": 0, "frozen": 0, "zero_rate": False}


def test_parameters_frozen_after_the_optimizer_was_made_are_counted_as_frozen() -> None:
    net = Net()
    with observe() as observation:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.one.requires_grad_(False)
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    step = Kept.of(observation.table).called("torch.optim.SGD.step")[-1]
    assert step.values["self.frozen"].plain == 2


def test_frozen_parameters_are_counted_if_the_optimizer_has_no_others() -> None:
    net = Net()
    net.one.requires_grad_(False)
    found = _held(net, torch.optim.SGD(net.one.parameters(), lr=0.0))
    assert found == {"has_gradients": False, "stale": 0, "frozen": 2, "zero_rate": True}


def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A function of this module that takes a model and an optimizer."""


@pytest.mark.parametrize("own", [True, False])
def test_a_call_records_whether_its_optimizer_holds_parameters_of_its_model(own: bool) -> None:
    net, other = Net(), Net()
    optimizer = torch.optim.SGD((net if own else other).parameters(), lr=0.1)
    name = f"{__name__}.wrap"
    with observe([name]) as observation:
        sys.modules[__name__].__dict__["wrap"](net, optimizer)
    [call] = Kept.of(observation.table).called(name)
    assert call.values["arg.optimizer.in_model"].plain is own


def test_an_unsettled_tensor_is_read_again_without_a_new_version() -> None:
    objects, received = Objects(), torch.zeros(3)
    before = objects.tensor(received)[0].digest
    objects.unsettle([received])
    received.numpy()[:] = 1.0  # neither the version nor the address changes
    assert objects.tensor(received)[0].digest != before


class Accumulating(torch.optim.Optimizer):
    """Wraps an optimizer, and calls its step every second time."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.calls = optimizer, 0
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        """Step every second time."""
        self.calls += 1
        if self.calls % 2 == 0:
            self.optimizer.step()


def test_only_the_steps_of_a_wrapped_optimizer_are_recorded() -> None:
    net = Net()
    optimizer = Accumulating(torch.optim.SGD(net.parameters(), lr=0.1))
    with observe() as observation:
        for _ in range(4):
            net(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    found = Kept.of(observation.table)
    assert len(found.called("torch.optim.SGD.step")) == 2
    assert found.called("torch.optim.Optimizer.step") == []
