"""Steps and micro-batches that one call begins and another call ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.record import program
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.reader import Trace

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def training(begin_and_end: bool) -> Callable[[Context], None]:
    def train(ctx: Context) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)

        def one(index: int) -> None:
            loss = model(X[index]).square().sum()
            ctx.loss(loss)
            loss.backward()

        for step in range(2):
            if begin_and_end:
                assert ctx.begin_step() == step
                for index in ctx.microbatches(2):
                    ctx.begin_microbatch(index)
                    one(index)
                    ctx.end_microbatch()
                optimizer.step()
                ctx.end_step()
            else:
                with ctx.step():
                    for index in ctx.microbatches(2):
                        with ctx.microbatch(index):
                            one(index)
                    optimizer.step()
            optimizer.zero_grad()

    return train


def test_begin_and_end_calls_record_the_same_as_context_managers(record: Any) -> None:
    called, entered = record(training(True)), record(training(False))

    assert list(called.hashes().items()) == list(entered.hashes().items())
    assert [(s.step, s.microbatches, s.optimizer_stepped) for s in called.rank.steps] == [
        (0, 2, True),
        (1, 2, True),
    ]


def end_without_begin(ctx: Context) -> None:
    ctx.end_step()


def end_within_with(ctx: Context) -> None:
    with ctx.step():
        ctx.end_step()


def end_microbatch_without_begin(ctx: Context) -> None:
    ctx.begin_step()
    ctx.end_microbatch()


def step_within_step(ctx: Context) -> None:
    ctx.begin_step()
    ctx.begin_step()


def microbatch_outside(ctx: Context) -> None:
    ctx.begin_microbatch(0)


def microbatch_within_microbatch(ctx: Context) -> None:
    ctx.begin_step()
    ctx.begin_microbatch(0)
    ctx.begin_microbatch(1)


def end_step_in_microbatch(ctx: Context) -> None:
    ctx.begin_step()
    ctx.begin_microbatch(3)
    ctx.end_step()


def step_left_open(ctx: Context) -> None:
    ctx.begin_step()
    ctx.end_step()
    ctx.begin_step()


def microbatch_left_open(ctx: Context) -> None:
    ctx.begin_step()
    ctx.begin_microbatch(5)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (end_without_begin, "ctx.end_step.*but ctx.begin_step has not.*call ctx.begin_step"),
        (end_within_with, "ctx.end_step.*but ctx.begin_step has not.*call ctx.begin_step"),
        (end_microbatch_without_begin, "ctx.end_microbatch.*but ctx.begin_microbatch has not"),
        (step_within_step, "step was entered inside step 0; .*ctx.end_step"),
        (microbatch_outside, "microbatch was entered outside ctx.step.*ctx.begin_step"),
        (microbatch_within_microbatch, r"microbatch\(1\) was entered inside micro-batch 0; .*end_"),
        (end_step_in_microbatch, "end_step was called in micro-batch 3 of step 0; call ctx.end_mi"),
        (step_left_open, r"ended in step 1; call ctx.end_step\(\) before the program ends"),
        (microbatch_left_open, "ended in micro-batch 5 of step 0; call ctx.end_microbatch"),
    ],
)
def test_misused_begin_and_end_calls_raise_an_error_with_advice(
    record: Any, misuse: Callable[[Context], None], message: str
) -> None:
    def train(ctx: Context) -> None:
        ctx.watch(nn.Linear(3, 2))
        misuse(ctx)

    with pytest.raises(ProgramError, match=message):
        record(train)


def test_an_exception_in_an_open_step_propagates_and_recorded_values_are_kept(assign: Any) -> None:
    assignment = assign()

    def train(ctx: Context) -> None:
        model = nn.Linear(3, 2)
        ctx.watch(model)
        for step in range(2):
            ctx.begin_step()
            ctx.begin_microbatch(0)
            model(X).sum().backward()
            if step:
                raise ValueError("my own")
            ctx.end_microbatch()
            ctx.end_step()

    with pytest.raises(ValueError, match="my own"):
        program.record(assignment, train)
    rank = Trace.open(assignment.trace, allow_incomplete=True).ranks[0]
    assert [event.step for event in rank.steps] == [0]
    assert [id.kind for id in rank.tensors if id.step == 1] == ["input", "activation"]
