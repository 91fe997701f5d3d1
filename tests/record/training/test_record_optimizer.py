"""Parameters, master copies and optimizer state, whatever the optimizer is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def train_with(model: nn.Module, optimizer: Any, stepping: Any = None) -> Any:
    """Two steps of `stepping` (by default `optimizer`), watching `optimizer`."""
    stepping = stepping or optimizer

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        for _ in range(2):
            with ctx.step():
                with ctx.microbatch(0):
                    model(X).square().sum().backward()
                stepping.step()
                model.zero_grad()

    return train


def test_parameters_are_recorded_before_the_first_step_and_after_each(record: Any) -> None:
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    run = record(train_with(model, torch.optim.SGD(model.parameters(), lr=0.125)))
    values = [before]
    for step in range(2):
        values.append(values[-1] - 0.125 * run.get("main_grad", "weight", step=step))
    for step, value in enumerate(values, start=INITIAL):
        assert torch.equal(run.get("param", "weight", step=step), value)
    assert [event.optimizer_stepped for event in run.rank.steps] == [True, True]
    kinds = [id.kind for id in run.rank.tensors if id.step == 0]
    assert list(dict.fromkeys(kinds)) == [
        "input",
        "activation",
        "activation_grad",
        "param_grad",
        "main_grad",
        "param",
    ]


def test_adam_moments_are_recorded_for_every_group(record: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters()},
        {"params": model[1].parameters(), "lr": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    run = record(train_with(model, optimizer))
    names = [name for name, _ in model.named_parameters()]
    assert run.paths("optimizer_state", 1) == [
        f"{name}.{key}" for name in names for key in ("step", "exp_avg", "exp_avg_sq")
    ]
    for name, parameter in model.named_parameters():
        for key in ("exp_avg", "exp_avg_sq", "step"):
            got = run.get("optimizer_state", f"{name}.{key}", step=1)
            assert torch.equal(got, optimizer.state[parameter][key])
    gradient = run.get("main_grad", "0.weight")
    assert torch.equal(
        run.get("optimizer_state", "0.weight.exp_avg"), torch.zeros(5, 3).lerp(gradient, 1 - 0.9)
    )


def test_master_copies_and_their_state_are_recorded_before_and_after_a_step(record: Any) -> None:
    model = nn.Linear(3, 2, bias=False).bfloat16()
    master = nn.Parameter(model.weight.detach().float())
    start = master.detach().clone()
    model.weight.main_param = master  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW([master], lr=1e-3)

    def copy_gradient(*_: Any) -> None:
        assert model.weight.grad is not None
        master.grad = model.weight.grad.float()

    optimizer.register_step_pre_hook(copy_gradient)

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        with ctx.step():
            with ctx.microbatch(0):
                model(X.bfloat16()).sum().backward()
            optimizer.step()
            model.weight.data.copy_(master)

    run = record(train)
    assert torch.equal(run.get("master_param", "weight", step=INITIAL), start)
    assert torch.equal(run.get("master_param", "weight"), master.detach())
    assert not torch.equal(master, start)
    assert torch.equal(run.get("param", "weight"), master.detach().bfloat16())
    got = run.get("optimizer_state", "weight.exp_avg")
    assert torch.equal(got, optimizer.state[master]["exp_avg"])


def test_a_master_copy_of_a_part_of_a_parameter_is_not_recorded(record: Any) -> None:
    model = nn.Linear(3, 2)
    model.weight.main_param = torch.zeros(3)  # type: ignore[attr-defined]
    assert (
        record(train_with(model, None, torch.optim.SGD(model.parameters(), lr=0.1))).paths(
            "master_param"
        )
        == []
    )


class Wrapper:
    """An optimizer that is not a torch.optim.Optimizer, as mixed-precision wrappers are."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.calls = 0

    def step(self, closure: Any = None) -> str:
        self.calls += 1
        self.optimizer.step(closure)
        return "stepped"


class InName(torch.optim.Optimizer):
    """A torch.optim.Optimizer that never called its __init__, as accelerate's is."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step()


@pytest.mark.parametrize("wrap", [Wrapper, InName, lambda o: Wrapper(Wrapper(o))])
def test_steps_and_states_of_wrapped_optimizers_are_recorded(record: Any, wrap: Any) -> None:
    model = nn.Linear(3, 2)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = wrap(inner)
    run = record(train_with(model, optimizer))
    assert [event.optimizer_stepped for event in run.rank.steps] == [True, True]
    got = run.get("optimizer_state", "weight.exp_avg", step=1)
    assert torch.equal(got, inner.state[model.weight]["exp_avg"])
    assert run.paths("main_grad") == ["weight", "bias"] * 2
    if isinstance(optimizer, Wrapper):
        assert optimizer.calls == 2
        assert optimizer.step() == "stepped"


def test_without_an_optimizer_gradients_and_parameters_are_recorded(record: Any) -> None:
    model = nn.Linear(3, 2)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step():
            with ctx.microbatch(0):
                model(X).sum().backward()
            stepping.step()

    run = record(train)
    assert [event.optimizer_stepped for event in run.rank.steps] == [False]
    assert model.weight.grad is not None
    assert torch.equal(run.get("main_grad", "weight"), model.weight.grad)
    assert torch.equal(run.get("param", "weight"), model.weight.detach())
    assert run.paths("optimizer_state") == []


def test_a_skipped_optimizer_step_is_recorded_as_skipped(record: Any) -> None:
    model = nn.Linear(3, 2)

    def train(ctx: Context) -> None:
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with ctx.step(), ctx.microbatch(0):
            model(X).sum().backward()

    run = record(train)
    assert [event.optimizer_stepped for event in run.rank.steps] == [False]
    assert model.weight.grad is not None
    assert torch.equal(run.get("main_grad", "weight"), model.weight.grad)


def test_gradients_computed_in_an_optimizer_closure_are_recorded(record: Any) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    losses = []

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        for _ in range(2):
            with ctx.step(), ctx.microbatch(0):

                def closure() -> float:
                    optimizer.zero_grad()
                    loss = (model(X) - 1).square().sum()
                    loss.backward()
                    losses.append(loss.item())
                    return loss.item()

                optimizer.step(closure)

    run = record(train)
    assert losses[-1] < losses[0]
    assert [event.optimizer_stepped for event in run.rank.steps] == [True, True]
    assert model.weight.grad is not None
    assert torch.equal(run.get("main_grad", "weight", step=1), model.weight.grad)
    calls = [path for path in run.paths("activation", 0) if path.startswith("output")]
    assert calls[:2] == ["output", "output#1"]


def test_states_of_other_shapes_are_recorded_and_non_tensors_are_not(record: Any) -> None:
    class Factored(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for parameter in model.parameters():
                self.state[parameter]["rows"] = torch.ones(parameter.shape[0])
                self.state[parameter]["count"] = torch.tensor(1.0)
                self.state[parameter]["name"] = "text"

    model = nn.Linear(3, 2, bias=False)
    run = record(train_with(model, Factored(model.parameters(), lr=0.1)))
    assert set(run.paths("optimizer_state", 0)) == {"weight.rows", "weight.count"}


def test_tensors_in_a_list_or_dict_of_the_state_are_recorded(record: Any) -> None:
    class Shampoo(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                state["factors"] = [parameter.grad @ parameter.grad.T, 3]
                state["named"] = {"mean": parameter.grad.mean()}

    model = nn.Linear(3, 2, bias=False)
    run = record(train_with(model, Shampoo(model.parameters(), {})))

    grad = run.get("main_grad", "weight")
    assert torch.equal(run.get("optimizer_state", "weight.factors.0"), grad @ grad.T)
    assert torch.equal(run.get("optimizer_state", "weight.named.mean"), grad.mean())
    assert "weight.factors.1" not in {id.name for id in run.rank.tensors}


@pytest.mark.parametrize("optimizer", [[], "adam", object()])
def test_an_optimizer_without_a_step_method_is_refused(record: Any, optimizer: object) -> None:
    with pytest.raises(ProgramError, match=r"has no step\(\); pass the optimizer"):
        record(lambda ctx: ctx.watch(nn.Linear(1, 1), optimizer))


def test_ctx_initialize_gives_weights_norms_and_biases_their_default_scales(record: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128))

    def train(ctx: Context) -> None:
        ctx.initialize(model)
        ctx.watch(model)
        with ctx.step():
            pass

    run = record(train)
    weight = run.get("param", "0.weight", step=INITIAL)
    assert abs(float(weight.std()) * math.sqrt(64) - 1) < 0.05
    assert abs(float(run.get("param", "1.weight", step=INITIAL).mean()) - 1) < 0.05
    assert abs(float(run.get("param", "0.bias", step=INITIAL).std()) - 0.02) < 0.005
