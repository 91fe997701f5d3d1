"""`ctx.batch` records what a loop reads that calls a method of the model and not the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.current import context

X = torch.linspace(-1, 1, 12).reshape(2, 2, 3)


def train(ctx: Context, names: bool = True, calls: bool = False, level: Any = "microbatch") -> None:
    """Two micro-batches; `names` them by ctx.batch, and `calls` the module or its method."""
    model = nn.Linear(3, 2)
    ctx.initialize(model)
    ctx.watch(model, level=level)

    def one(index: int) -> None:
        if names:
            ctx.batch({"x": X[index], "y": [X[index] + 1, "a text"]})
        loss = (model(X[index]) if calls else nn.Linear.forward(model, X[index])).sum()
        loss.backward()

    with ctx.step():
        for index in ctx.microbatches(2):
            if level == "step":
                one(index)
            else:
                with ctx.microbatch(index):
                    one(index)


@pytest.mark.parametrize("calls", [False, True])
def test_a_batch_is_the_input_of_its_micro_batch_whether_the_model_is_called_or_not(
    record: Any, calls: bool
) -> None:
    run = record(lambda ctx: train(ctx, calls=calls))

    assert [(each.microbatch, len(each.hashes)) for each in run.rank.inputs] == [(0, 2), (1, 2)]
    assert run.rank.inputs[0].hashes != run.rank.inputs[1].hashes
    assert run.paths("input") == ["input.x", "input.y.0"] * 2
    assert torch.equal(run.get("input", "input.x", microbatch=0), X[0])


def test_a_batch_of_a_whole_step_is_counted(record: Any) -> None:
    run = record(lambda ctx: train(ctx, level="step"))

    assert [each.microbatch for each in run.rank.inputs] == [0, 1]
    assert all(each.measures for each in run.rank.inputs)


def test_without_the_call_a_loop_that_bypasses_the_model_has_no_inputs(record: Any) -> None:
    assert record(lambda ctx: train(ctx, names=False)).rank.inputs == []


def test_a_batch_outside_of_a_step_is_refused(record: Any) -> None:
    def outside(ctx: Context) -> None:
        ctx.watch(nn.Linear(3, 2))
        ctx.batch(X[0])

    with pytest.raises(ProgramError, match="was called outside"):
        record(outside)


def test_a_script_that_runs_alone_may_name_its_batches() -> None:
    context().batch(X[0])
