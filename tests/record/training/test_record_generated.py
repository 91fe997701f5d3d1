"""A localisation's Run replaces main gradients just before the optimizer uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.events import replacement, rewrite_key
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.run_spec import Rewrite

WEIGHT = TensorId(0, None, "main_grad", "", "weight")
VALUES = Rewrite((2, 3), 0.5, 0.25)
REWRITE = {rewrite_key(WEIGHT): VALUES}

#: Makes the step of a model: returns the optimizer to watch, and a function that steps.
Make = Callable[[nn.Linear], tuple[Any, Callable[[], object]]]


def plain(model: nn.Linear) -> tuple[Any, Callable[[], object]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return optimizer, optimizer.step


def clipped_before(model: nn.Linear) -> tuple[Any, Callable[[], object]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    return optimizer, step


class ClippingSGD(torch.optim.SGD):
    """Clips inside its step, after the step's hooks have run."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 0.5)
        super().step(closure)


def clipped_inside(model: nn.Linear) -> tuple[Any, Callable[[], object]]:
    optimizer = ClippingSGD(model.parameters(), lr=1.0)
    return optimizer, optimizer.step


def with_masters(model: nn.Linear) -> tuple[Any, Callable[[], object]]:
    """The optimizer updates a float64 copy, whose gradient is a copy as well."""
    held: Any = model.weight
    held.main_param = nn.Parameter(model.weight.detach().double())
    optimizer = torch.optim.SGD([held.main_param], lr=1.0)

    def step() -> None:
        held.main_param.grad = held.grad.double()
        optimizer.step()
        held.data.copy_(held.main_param)

    return optimizer, step


def with_a_flat_range(model: nn.Linear) -> tuple[Any, Callable[[], object]]:
    """The optimizer updates a flat copy of the parameter, and gets a view of its gradient."""
    held: Any = model.weight
    held.main_param = nn.Parameter(model.weight.detach().clone().view(-1))
    held.main_param_range = (0, model.weight.numel())
    optimizer = torch.optim.SGD([held.main_param], lr=1.0)

    def step() -> None:
        held.main_param.grad = held.grad.view(-1)
        optimizer.step()
        held.data.copy_(held.main_param.view_as(held))

    return optimizer, step


def with_hidden_copies(model: nn.Linear) -> tuple[Any, Callable[[], object]]:
    """The optimizer reads a gradient that nothing on the parameter leads to."""
    hidden = nn.Parameter(model.weight.detach().clone())
    optimizer = torch.optim.SGD([hidden], lr=1.0)

    def step() -> None:
        assert model.weight.grad is not None
        hidden.grad = model.weight.grad.clone()
        optimizer.step()
        model.weight.data.copy_(hidden)

    return optimizer, step


def with_a_closure(model: nn.Linear) -> tuple[Any, Callable[[], object]]:
    """The step itself computes the gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step() -> None:
        optimizer.step(lambda: 0.0)

    return optimizer, step


def training(make: Make, factor: float = 1.0) -> Any:
    """One step; the gradient is multiplied by `factor`, as by a bug."""

    def train(ctx: Context) -> None:
        model = nn.Linear(3, 2, bias=False).to(ctx.dtype)
        ctx.initialize(model)
        optimizer, step = make(model)
        ctx.watch(model, optimizer)
        with ctx.step():
            with ctx.microbatch(0):
                (model(torch.ones(4, 3).to(ctx.dtype)).square().mean() * factor).backward()
            step()

    return train


def notes(run: Any) -> list[tuple[str, str]]:
    return [(key, text) for key in ("generated", "kept") for text in run.rank.note(key)]


@pytest.mark.parametrize(
    "make", [plain, clipped_before, clipped_inside, with_masters, with_a_flat_range]
)
def test_the_optimizer_uses_the_generated_gradient_whatever_the_programs_is(
    record: Any, make: Make
) -> None:
    right, wrong = (
        record(training(make, factor), dtype="float32", rewrite=REWRITE) for factor in (1.0, 3.0)
    )

    assert notes(right) == notes(wrong) == [("generated", "step 0, weight")]
    assert torch.equal(right.get("param", "weight"), wrong.get("param", "weight"))
    if make is plain:
        update = right.get("param", "weight", step=-1) - right.get("param", "weight")
        assert torch.allclose(update, replacement(WEIGHT, VALUES, 0, update), atol=1e-6)


@pytest.mark.parametrize("make", [plain, with_masters])
def test_the_programs_own_gradient_is_recorded(record: Any, make: Make) -> None:
    own, run = (record(training(make), rewrite=rewrite) for rewrite in ({}, REWRITE))
    assert torch.equal(own.get("main_grad", "weight"), run.get("main_grad", "weight"))
    assert notes(own) == []
    assert not torch.equal(own.get("param", "weight"), run.get("param", "weight"))


@pytest.mark.parametrize("make", [with_hidden_copies, with_a_closure])
def test_a_gradient_that_the_optimizer_does_not_read_there_is_left_as_it_is(
    record: Any, make: Make
) -> None:
    own, run = (record(training(make), rewrite=rewrite) for rewrite in ({}, REWRITE))
    assert notes(run) == []
    assert torch.equal(own.get("param", "weight"), run.get("param", "weight"))


def test_a_gradient_of_another_shape_is_kept_and_noted(record: Any) -> None:
    rewrite = {rewrite_key(WEIGHT): Rewrite((4, 3), 0.5, 0.25)}
    assert notes(record(training(plain), rewrite=rewrite)) == [("kept", "step 0, weight")]


def test_no_line_of_the_program_is_recorded_for_the_replacement(record: Any) -> None:
    from pytest_trainsafe.trace.facts import Site

    run = record(training(plain), rewrite=REWRITE)
    assert not [site for site in run.rank.events_of(Site) if site.what == "write"]


def test_the_gradient_of_a_dtensor_is_replaced(record: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))

    def distributed(factor: float) -> Any:
        def train(ctx: Context) -> None:
            model = nn.Linear(3, 2, bias=False).to(ctx.dtype)
            ctx.initialize(model)
            model.weight = nn.Parameter(distribute_tensor(model.weight.data, mesh, [Shard(0)]))
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            ctx.watch(model, optimizer)
            with ctx.step():
                with ctx.microbatch(0):
                    inputs = distribute_tensor(torch.ones(4, 3).to(ctx.dtype), mesh)
                    loss: Tensor = model(inputs).square().mean()
                    assert isinstance(loss, DTensor)
                    (loss.full_tensor() * factor).backward()
                optimizer.step()

        return train

    right, wrong = (record(distributed(factor), rewrite=REWRITE) for factor in (1.0, 3.0))
    assert notes(right) == notes(wrong) == [("generated", "step 0, weight")]
    assert torch.equal(right.get("param", "weight"), wrong.get("param", "weight"))
