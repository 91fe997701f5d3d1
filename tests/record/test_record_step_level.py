"""With level="step" only whole steps are recorded, and micro-batches cannot be entered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def whole_steps(ctx: Context) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    ctx.watch(model, optimizer, level="step")
    for _ in range(2):
        with ctx.step():
            loss = model(X[:2]).square().sum() + model(X[2:]).square().sum()
            ctx.loss(loss)
            loss.backward()
            ctx.grad_norm(1.0)
            optimizer.step()
            optimizer.zero_grad()


def test_at_level_step_only_values_of_whole_steps_are_recorded(record: Any) -> None:
    run = record(whole_steps)

    kinds = {"param", "main_grad", "optimizer_state", "loss", "grad_norm"}
    assert {id.kind for id in run.rank.tensors} == kinds
    assert {id.microbatch for id in run.rank.tensors} == {None}
    assert run.rank.note("level") == ["step"]
    # Inputs distinguish the dp ranks; their micro-batch numbers count the calls of the model.
    assert [(e.step, e.microbatch) for e in run.rank.inputs] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_at_level_step_noise_changes_losses_and_parameters(record: Any) -> None:
    plain, noisy = record(whole_steps), record(whole_steps, perturbation=2.0**-10)

    differ = {id.path for id, digest in plain.hashes().items() if noisy.hashes()[id] != digest}
    assert {"0.weight", "1.weight", "loss"} <= differ


@pytest.mark.parametrize(
    ("point", "layout"), [({"dp": 2}, (Partial("dp", "avg"),)), ({"tp": 2}, ()), ({}, ())]
)
def test_a_loss_at_level_step_is_a_mean_over_dp(record: Any, point: Any, layout: Any) -> None:
    run = record(whole_steps, point=point)

    losses = [event for id, event in run.rank.tensors.items() if id.kind == "loss"]
    assert [event.layout for event in losses] == [layout, layout]
    norms = [event for id, event in run.rank.tensors.items() if id.kind == "grad_norm"]
    assert {event.layout for event in norms} == {()}


def entered(ctx: Context) -> None:
    ctx.watch(nn.Linear(3, 2), level="step")
    with ctx.step(), ctx.microbatch(0):
        pass


def unknown(ctx: Context) -> None:
    ctx.watch(nn.Linear(3, 2), level="epoch")  # type: ignore[arg-type]


def loss_twice(ctx: Context) -> None:
    ctx.watch(nn.Linear(3, 2), level="step")
    with ctx.step():
        ctx.loss(1.0)
        ctx.loss(1.0)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (entered, r"ctx.microbatch\(0\) was entered in a program whose ctx.watch has level='step'"),
        (unknown, "level='epoch'; pass 'microbatch'.* or 'step'"),
        (loss_twice, "ctx.loss was called twice in one step"),
    ],
)
def test_misuse_at_level_step_raises_an_error_with_advice(
    record: Any, misuse: Callable[[Context], None], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        record(misuse)


def test_the_inputs_of_a_whole_step_are_measured_alike_in_two_dtypes(record: Any) -> None:
    data = torch.linspace(-1, 3, 12).reshape(4, 3)

    def measures(dtype: torch.dtype, scale: float = 1.0) -> Any:
        model = nn.Linear(3, 1).to(dtype)

        def train(ctx: Context) -> None:
            ctx.watch(model, level="step")
            with ctx.step():
                model((data * scale).to(dtype)).sum().backward()

        [event] = record(train).rank.inputs
        return event.measures

    [(norm, projection)] = measures(torch.float32)

    assert norm == pytest.approx(float(data.double().norm()), rel=1e-12)
    assert measures(torch.float64) == ((norm, projection),)
    assert measures(torch.float32, 1.001)[0][1] != pytest.approx(projection, rel=1e-4)
