"""Calls are recorded with their arguments, results, nesting and exceptions."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_

from pytest_trainsafe import observe
from pytest_trainsafe.judges.learn.instrument.patching.catalogue import Role, Target, catalogue
from pytest_trainsafe.judges.learn.instrument.patching.patches import Patches
from tests.support.learn.observing import Kept, Net, train


def test_a_call_is_recorded_with_its_named_arguments_its_result_and_its_parent() -> None:
    with observe() as observation:
        net = Net()
        net(torch.ones(2, 3))
    kept = Kept.of(observation.table)
    whole, first = kept.called("torch.nn.Module.forward")[0], kept.called("torch.nn.Linear.forward")
    relu = kept.called("torch.nn.functional.relu")[0]
    assert [call.parent for call in first] == [whole, whole]
    assert first[0].values["self.name"].plain == "one"
    assert first[0].values["self.training"].plain is True
    assert relu.parent is whole
    assert relu.values["arg.inplace"].plain is False  # the default of a parameter
    result, given = relu.values["result"], relu.values["arg.input"]
    assert given == first[0].values["result"]
    assert result.tensor is not None
    assert (result.tensor.shape, result.tensor.dtype) == ((2, 4), "float32")
    assert result.identity != given.identity != 0


def test_positional_and_keyword_arguments_are_recorded_alike() -> None:
    x = torch.ones(2)
    with observe(["torch.nn.functional.dropout"]) as observation:
        F.dropout(x, 0.25, True)
        F.dropout(x, training=True, p=0.25)
    first, second = (set(call.values.items()) for call in Kept.of(observation.table).calls)
    assert {item for item in first if item[0] != "result"} == {
        item for item in second if item[0] != "result"
    }


def test_a_method_is_named_by_the_objects_class_or_its_nearest_library_base_class() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            super().step()

    net = Net()
    with observe(variables=()) as observation:
        train(net, torch.optim.AdamW(net.parameters()), 1)
        train(net, Own(net.parameters(), lr=0.1), 1)
    apis = Kept.of(observation.table).apis()
    assert apis.count("torch.optim.AdamW.step") == 1
    assert apis.count("torch.optim.SGD.step") == 1, "a call of super() repeats the call"
    assert "torch.optim.Optimizer.step" not in apis


def test_an_exception_ends_the_open_calls_and_reaches_the_program() -> None:
    def fails(module: nn.Module, args: object) -> None:
        raise ZeroDivisionError("planted")

    net = Net()
    net.two.register_forward_pre_hook(fails)
    with observe() as observation:
        with pytest.raises(ZeroDivisionError, match="planted"):
            net(torch.ones(2, 3))
        F.relu(torch.ones(1))
    kept = Kept.of(observation.table)
    assert {call.api: call.exception for call in kept.returned} == {
        "torch.nn.Linear.forward": "builtins.ZeroDivisionError",
        "torch.nn.functional.linear": "",
        "torch.nn.functional.relu": "",
        "torch.nn.Module.forward": "builtins.ZeroDivisionError",
    }
    assert kept.calls[-1].parent is None


def test_a_function_imported_by_name_is_observed_and_a_generator_is_not_consumed() -> None:
    net = Net()
    net(torch.ones(2, 3)).sum().backward()
    with observe() as observation:
        clip_grad_norm_(net.parameters(), 1e-3)
    outer, *inner = Kept.of(observation.table).calls
    assert outer.api == "torch.nn.utils.clip_grad_norm_"
    assert outer.values["arg.parameters"].type == "generator"
    assert [call.parent for call in inner] == [outer, outer]
    assert sum(float(p.grad.norm()) for p in net.parameters() if p.grad is not None) < 0.01


def test_steps_and_learning_rates_of_an_optimizer_made_before_observe_are_recorded() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with observe() as observation:
        train(net, optimizer, 2, lambda step: scheduler.step())
    kept = Kept.of(observation.table)
    assert kept.steps == [0, 1]
    assert kept.apis().count("torch.optim.SGD.step") == 2
    rates = [change.after.plain for change in kept.of_object("optimizer.param_groups.0", "lr")]
    assert rates == [0.05, 0.025]


def test_a_static_method_is_passed_its_arguments_and_restored() -> None:
    class Made:
        @staticmethod
        def of(number: int) -> int:
            return number + 1

    before, seen = vars(Made)["of"], []

    class Runner:
        def run(self, target: Target, original: Any, args: Any, kwargs: Any) -> Any:
            seen.append((target.is_method, args))
            return original(*args, **kwargs)

    target = Target(Made, "of", "made.of", Role("declared"), static=True)
    with Patches().active(Runner(), [target]):
        assert (Made.of(1), Made().of(2)) == (2, 3)
    assert seen == [(False, (1,)), (False, (2,))]
    assert vars(Made)["of"] is before


def test_observed_functions_are_restored_after_an_exception() -> None:
    class Late(torch.optim.SGD):
        """torch wraps the `step` of an optimizer class when the first instance is made."""

        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    plain = Late.step

    def present() -> dict[object, object]:
        found: dict[object, object] = {
            (each.owner, each.attribute): vars(each.owner).get(each.attribute)
            for each in catalogue()
            if each.owner is not Late
        }
        others = clip_grad_norm_, random.seed, nn.Module.__call__, torch.Tensor.copy_
        return {**found, **dict(enumerate(others))}

    def fails() -> None:
        with observe(["torch.Tensor.copy_", "torch"]):
            assert present() != before
            train(Net(), Late(Net().parameters(), lr=0.1), 1)
            raise KeyError

    before = present()
    with pytest.raises(KeyError):
        fails()
    now = present()
    assert now.keys() == before.keys()
    assert [key for key in before if now[key] is not before[key]] == []
    assert "copy_" not in vars(torch.Tensor)
    step: Any = Late.step
    assert step.hooked
    assert plain in [cell.cell_contents for cell in step.__closure__]


def test_wrapped_functions_that_the_program_kept_work_after_the_observation() -> None:
    net = Net()
    with observe():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        relu = F.relu
    before = net.one.weight.detach().clone()
    train(net, optimizer, 1, lambda step: scheduler.step())
    assert not torch.equal(before, net.one.weight)
    assert relu(torch.tensor(-1.0)) == 0


def test_an_optimizer_class_defined_during_the_observation_is_observed() -> None:
    with observe() as observation:

        class Sign(torch.optim.Optimizer):
            def __init__(self, params: object) -> None:
                super().__init__(params, {"lr": 0.5})  # type: ignore[arg-type]

            @torch.no_grad()
            def step(self, closure: object = None) -> None:  # type: ignore[override]
                for group in self.param_groups:
                    for p in group["params"]:
                        p -= group["lr"] * p.grad.sign()

        net = Net()
        train(net, Sign(net.parameters()), 1)
    kept = Kept.of(observation.table)
    [step] = kept.called("torch.optim.Optimizer.step")
    assert {change.by for change in kept.of_object("model.one.weight", "data")} == {step}
    assert kept.steps == [0]


def test_observation_does_not_change_the_bits_of_a_training() -> None:
    def trained() -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(Net(), nn.Dropout(0.5))
        train(net, torch.optim.AdamW(net.parameters()), 3)
        return [*(p.detach().clone() for p in net.parameters()), torch.get_rng_state()]

    alone = trained()
    with observe(operators=True):
        observed = trained()
    assert all(torch.equal(one, two) for one, two in zip(alone, observed, strict=True))
