"""With any wrapper of an optimizer, its gradients and its state are recorded once per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.training.optimizer import states, stepping

X = torch.linspace(-1, 1, 24).reshape(2, 4, 3)


def model_of_two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))


def train_with(model: nn.Module, optimizer: Any, each_microbatch: bool = False) -> Any:
    """Two steps of two micro-batches; with `each_microbatch` step() is called in both."""

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        for _ in range(2):
            with ctx.step():
                for index in ctx.microbatches(2):
                    with ctx.microbatch(index):
                        model(X[index]).square().sum().backward()
                        if each_microbatch:
                            optimizer.ready = index == 1
                            optimizer.step()
                if not each_microbatch:
                    step(optimizer)
                model.zero_grad()

    return train


def step(optimizer: Any) -> None:
    if isinstance(optimizer, list | dict):
        for one in optimizer.values() if isinstance(optimizer, dict) else optimizer:
            one.step()
    else:
        optimizer.step()


class Gated(torch.optim.Optimizer):
    """Skips its optimizer's steps until it is ready; it never calls Optimizer.__init__."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.ready = False

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.ready:
            self.optimizer.step()


class Chained:
    """Wraps several optimizers; has properties that are defined only for a single one."""

    def __init__(self, *optimizers: torch.optim.Optimizer | Imitation) -> None:
        self.chained_optimizers = list(optimizers)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        raise AssertionError("more than one optimizer")

    @property
    def state(self) -> Any:
        raise AssertionError("more than one optimizer")

    def step(self) -> tuple[bool, float, None]:
        for optimizer in self.chained_optimizers:
            optimizer.step()
        return True, 1.0, None


class Container(torch.optim.Optimizer):
    """A real Optimizer over all parameters that delegates its steps to others."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = list(optimizers)
        groups = [group for one in optimizers for group in one.param_groups]
        super().__init__(groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()


class Imitation:
    """Takes the class of the optimizer that it wraps, and delegates missing attributes to it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        bases = (type(self), type(optimizer))
        self.__class__ = type("Imitation", bases, {})

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    def step(self, closure: Any = None) -> None:
        self._optimizer.step(closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


class GivesAway:
    """Moves gradients to master copies before the step, as mixed-precision wrappers may."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self.optimizer = optimizer
        self.model = model

    def step(self) -> None:
        parameters: list[Any] = list(self.model.parameters())
        for parameter in parameters:
            parameter.main_param.grad, parameter.grad = parameter.grad, None
        self.optimizer.step()
        for parameter in parameters:
            parameter.data.copy_(parameter.main_param)


class ByItself:
    """Updates parameters without calling the step of the optimizer that it holds."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self.optimizer = optimizer
        self.model = model

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad  # type: ignore[misc]  # in place
            parameter.grad = None


def two_adams(model: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(layer.parameters(), lr=1e-2) for layer in model]


WAYS: dict[str, Callable[[Any], Any]] = {
    "chained": lambda model: Chained(*two_adams(model)),
    "container": lambda model: Container(*two_adams(model)),
    "list": two_adams,
    "dict": lambda model: dict(zip("ab", two_adams(model), strict=True)),
    "imitation": lambda model: Imitation(torch.optim.AdamW(model.parameters(), lr=1e-2)),
    "chain of wrappers": lambda model: Chained(*map(Imitation, two_adams(model))),
}


@pytest.fixture
def bare(record: Any) -> Any:
    """The untrained model, and the recording of its training with the plain optimizer."""
    model = model_of_two()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    run = record(train_with(model, torch.optim.AdamW(model.parameters(), lr=1e-2)))
    model.load_state_dict(start)
    return model, run


@pytest.mark.parametrize("way", WAYS)
def test_a_wrapped_optimizer_is_recorded_like_the_plain_one(
    record: Any, bare: Any, way: str
) -> None:
    model, expected = bare
    run = record(train_with(model, WAYS[way](model)))
    assert run.hashes() == expected.hashes()
    assert [event.optimizer_stepped for event in run.rank.steps] == [True, True]


def test_steps_that_a_wrapper_skips_are_not_recorded(record: Any, bare: Any) -> None:
    model, expected = bare
    optimizer = Gated(torch.optim.AdamW(model.parameters(), lr=1e-2))
    run = record(train_with(model, optimizer, each_microbatch=True))
    assert run.hashes() == expected.hashes()
    assert run.rank.note("skipped") == []


def test_a_step_in_which_a_wrapper_calls_no_optimizer_is_recorded_as_skipped(record: Any) -> None:
    model = model_of_two()
    run = record(train_with(model, Gated(torch.optim.AdamW(model.parameters(), lr=1e-2))))
    assert [event.optimizer_stepped for event in run.rank.steps] == [False, False]
    assert run.rank.note("skipped")[0] == (
        "step 0, Gated.step() was called, but did not call an optimizer's step()"
    )


def test_gradients_that_a_wrapper_moves_to_master_copies_are_recorded_before_its_step(
    record: Any, bare: Any
) -> None:
    model, expected = bare
    for parameter in model.parameters():
        parameter.main_param = nn.Parameter(parameter.detach().clone())
    masters = [parameter.main_param for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2)
    run = record(train_with(model, GivesAway(optimizer, model)))
    wanted = {id: h for id, h in expected.hashes().items() if id.kind in ("main_grad", "param")}
    assert {id: run.hashes()[id] for id in wanted} == wanted


def test_a_wrapper_that_updates_parameters_itself_is_recorded_as_stepping(record: Any) -> None:
    model = model_of_two()
    optimizer = ByItself(torch.optim.SGD(model.parameters(), lr=0.1), model)
    run = record(train_with(model, optimizer))
    assert [event.optimizer_stepped for event in run.rank.steps] == [True, True]
    assert len(run.paths("main_grad")) == 8
    assert run.rank.note("skipped") == []


def test_gradients_are_recorded_before_the_step_of_the_optimizer_that_uses_them(
    record: Any,
) -> None:
    """The second optimizer's gradients change after the first one's step."""
    model = model_of_two()
    first, second = two_adams(model)
    seen: dict[str, torch.Tensor] = {}

    def train(ctx: Context) -> None:
        ctx.watch(model, [first, second])
        with ctx.step():
            with ctx.microbatch(0):
                loss = model(X[0]).square().sum()
                loss.backward()
            first.step()
            for parameter in model[1].parameters():
                assert parameter.grad is not None
                parameter.grad = 2 * parameter.grad
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                seen[name] = parameter.grad.clone()
            second.step()

    run = record(train)
    for name, gradient in seen.items():
        assert torch.equal(run.get("main_grad", name), gradient)


# Importing torch.distributed.optim calls torch.jit, which torch deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")
def test_zero_redundancy_optimizer_is_recorded_like_the_plain_optimizer(
    record: Any, bare: Any
) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, expected = bare

    def train(ctx: Context) -> None:
        _ = ctx.mesh
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
        train_with(model, optimizer)(ctx)

    assert record(train).hashes() == expected.hashes()
    dist.destroy_process_group()


def test_an_optimizer_without_inner_optimizers_is_itself_the_stepping_one() -> None:
    plain = torch.optim.SGD(model_of_two().parameters(), lr=0.1)
    plain.optimizer = None  # type: ignore[attr-defined]
    assert stepping(plain) == [plain]
    assert stepping(Chained()) != []
    assert list(states([], torch.zeros(1))) == []


def test_the_state_of_the_inner_optimizer_counts_and_not_a_wrappers_copy_of_it() -> None:
    mine, others = torch.zeros(1), torch.zeros(1)
    inner = torch.optim.SGD([mine], lr=0.1, momentum=0.9)
    inner.state[mine]["momentum_buffer"] = torch.tensor(1.0)
    wrapper: Any = ByItself(inner, model_of_two())
    wrapper.state = {mine: {"momentum_buffer": torch.tensor(2.0)}, others: None}

    assert [(key, float(value)) for key, value in states(wrapper, mine)] == [
        ("momentum_buffer", 1.0)
    ]
    assert list(states(wrapper, others)) == []
