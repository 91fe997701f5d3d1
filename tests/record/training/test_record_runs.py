"""Optimizers that hold ranges of flattened parameters: their tensors have flat layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import Flat, Scaled, Shard
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.schema import TensorEvent

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def sharded(start: int, end: int, **marks: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    """A layer whose optimizer holds elements `start` to `end` of its weight of 6; no bias."""
    model = nn.Linear(3, 2, bias=False)
    weight: Any = model.weight
    for mark, value in marks.items():
        setattr(weight, mark, value)
    weight.main_param_range = (start, end)
    weight.main_param = nn.Parameter(weight.detach().reshape(-1)[start:end].clone())
    weight.main_grad = torch.zeros_like(weight)
    optimizer = torch.optim.AdamW([weight.main_param], lr=0.1)

    def copy_gradient(*_: Any) -> None:
        weight.main_grad.copy_(weight.grad)
        weight.main_param.grad = weight.main_grad.reshape(-1)[start:end]

    optimizer.register_step_pre_hook(copy_gradient)
    return model, optimizer


def train_with(model: nn.Module, optimizer: torch.optim.Optimizer, annotations: Any = None) -> Any:
    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer, annotations=annotations)
        with ctx.step():
            with ctx.microbatch(0):
                model(X).square().sum().backward()
            optimizer.step()

    return train


def events(run: Any) -> dict[tuple[str, str, int], TensorEvent]:
    return {(id.kind, id.name, id.step): event for id, event in run.rank.tensors.items()}


def test_master_params_states_and_main_gradients_have_flat_layouts(record: Any) -> None:
    model, optimizer = sharded(2, 5)
    run = record(train_with(model, optimizer), point={"dp": 2})
    layout = (Flat(2, 3, (2, 3), ("dp",)),)
    found = events(run)
    for key in (
        ("master_param", "weight", INITIAL),
        ("master_param", "weight", 0),
        ("main_grad", "weight", 0),
        ("optimizer_state", "weight.exp_avg", 0),
    ):
        assert found[key].layout == layout, key
        assert found[key].shape == (3,)
    weight: Any = model.weight
    assert torch.equal(run.get("main_grad", "weight"), weight.grad.reshape(-1)[2:5])
    assert torch.equal(run.get("master_param", "weight"), weight.main_param.detach())
    # A scalar has a flat layout of one element.
    step = found["optimizer_state", "weight.step", 0]
    assert (step.layout, step.shape) == ((Flat(0, 1, (), ("dp",)),), (1,))
    # The parameter and its gradients before the reduction are not sharded.
    assert found["param", "weight", 0].layout == ()
    assert found["param_grad", "weight", 0].layout == ()


def test_a_rank_with_an_empty_range_records_no_master_param_and_no_main_gradient(
    record: Any,
) -> None:
    model, optimizer = sharded(0, 0)
    run = record(train_with(model, optimizer), point={"dp": 2})
    assert run.paths("master_param") == []
    assert run.paths("main_grad") == []
    assert run.paths("param") == ["weight"] * 2


def test_the_flat_range_of_a_tp_shard_follows_the_shard_in_the_layout(record: Any) -> None:
    model, optimizer = sharded(2, 5, tensor_model_parallel=True, partition_dim=0)
    run = record(train_with(model, optimizer), point={"dp": 2, "cp": 2, "tp": 2})
    found = events(run)["master_param", "weight", 0]
    assert found.layout == (Shard(0, "tp"), Flat(2, 3, (2, 3), ("dp", "cp")))
    assert found.layout_source == "attribute"


@pytest.mark.parametrize("given", [(0, 7), (3, 2), 4, (0.0, 6.0)])
def test_an_invalid_main_param_range_is_refused(record: Any, given: Any) -> None:
    model, optimizer = sharded(0, 6)
    model.weight.main_param_range = given  # type: ignore[attr-defined]
    with pytest.raises(LayoutError, match=r"weight has main_param_range .* of the 6 elements"):
        record(train_with(model, optimizer), point={"dp": 2})


def test_gradients_are_recorded_as_scaled_until_they_are_averaged(record: Any) -> None:
    model, optimizer = sharded(0, 6)
    annotations = {"gradients": {"mean": ["dp", "cp"]}}
    run = record(train_with(model, optimizer, annotations), point={"dp": 2})
    found = events(run)
    assert found["activation_grad", "output", 0].layout == (Scaled("dp"),)
    assert found["param_grad", "weight", 0].layout == (Scaled("dp"),)
    assert found["activation", "output", 0].layout == ()
    assert Scaled("dp") not in found["main_grad", "weight", 0].layout
