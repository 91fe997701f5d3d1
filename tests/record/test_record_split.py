"""With order="split", dp ranks compute slices of each micro-batch, and partial gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.core.layout import Partial, Shard
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)
CUT = {"modules": {"*": {"output": {"dp_dim": 0}}}}


def training(order: str, annotations: Any = CUT) -> Any:
    def train(ctx: Context) -> None:
        model = nn.Linear(3, 2)
        ctx.watch(model, annotations=annotations)
        with ctx.step():
            for index in ctx.microbatches(2, order=order):
                with ctx.microbatch(index):
                    loss = model(X[:2]).square().mean()
                    ctx.loss(loss)
                    loss.backward()

    return train


def test_over_dp_activations_are_sharded_gradients_partial_and_the_loss_averaged(
    record: Any,
) -> None:
    run = record(training("split"), point={"dp": 2})

    layouts = {id.kind: event.layout for id, event in run.rank.tensors.items()}
    assert layouts == {
        "input": (),
        "param": (),
        "activation": (Shard(0, "dp"),),
        "activation_grad": (Shard(0, "dp"),),
        "loss": (Partial("dp", "avg"),),
        "param_grad": (Partial("dp"),),
        "main_grad": (),
    }
    assert {id.microbatch for id in run.rank.tensors if id.kind == "activation"} == {0, 1}


def test_on_a_single_device_nothing_is_sharded(record: Any) -> None:
    run = record(training("split"))

    assert {event.layout for event in run.rank.tensors.values()} == {()}


def test_a_dp_dim_annotation_requires_the_order_split(record: Any) -> None:
    with pytest.raises(ProgramError, match=r"modules: \* has a dp_dim.*order='split'"):
        record(training("strided"), point={"dp": 2})

    assert record(training("strided"), point={"tp": 2}).rank.steps
