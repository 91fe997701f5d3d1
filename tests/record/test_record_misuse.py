"""Misuse of the Context raises an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.reader import Trace, TraceError

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def watched(ctx: Context) -> nn.Module:
    model = nn.Linear(3, 2)
    ctx.watch(model)
    return model


def step_without_watch(ctx: Context) -> None:
    with ctx.step():
        pass


def step_in_step(ctx: Context) -> None:
    watched(ctx)
    with ctx.step(), ctx.step():
        pass


def microbatch_outside(ctx: Context) -> None:
    watched(ctx)
    with ctx.microbatch(0):
        pass


def microbatch_in_microbatch(ctx: Context) -> None:
    watched(ctx)
    with ctx.step(), ctx.microbatch(0), ctx.microbatch(1):
        pass


def microbatch_twice(ctx: Context) -> None:
    model = watched(ctx)
    with ctx.step():
        for _ in range(2):
            with ctx.microbatch(7):
                model(X).sum().backward()


def forwards_in_one_microbatch(ctx: Context) -> None:
    model = watched(ctx)
    with ctx.step():
        for _ in range(2):
            with ctx.microbatch(7):
                loss = model(X).sum()
            loss.backward()


def follow_a_module(ctx: Context) -> None:
    ctx.follow(watched(ctx), 4)


def part_of_no_module(ctx: Context) -> None:
    ctx.watch({"layers.0": nn.Linear(3, 2), "layers.1": torch.relu})  # type: ignore[dict-item]


def loss_outside(ctx: Context) -> None:
    watched(ctx)
    with ctx.step():
        ctx.loss(torch.tensor(1.0))


def loss_twice(ctx: Context) -> None:
    watched(ctx)
    with ctx.step(), ctx.microbatch(3):
        ctx.loss(torch.tensor(1.0))
        ctx.loss(torch.tensor(1.0))


def norm_outside(ctx: Context) -> None:
    watched(ctx)
    ctx.grad_norm(1.0)


def norm_twice(ctx: Context) -> None:
    watched(ctx)
    with ctx.step():
        ctx.grad_norm(1.0)
        ctx.grad_norm(torch.tensor(1.0))


def watch_twice(ctx: Context) -> None:
    watched(ctx)
    watched(ctx)


def loss_of_nothing(ctx: Context) -> None:
    watched(ctx)
    with ctx.step(), ctx.microbatch(0):
        ctx.loss(None)  # type: ignore[arg-type]


def norm_in_a_dictionary(ctx: Context) -> None:
    watched(ctx)
    with ctx.step():
        ctx.grad_norm({"norm": 1.0})  # type: ignore[arg-type]


def watch_parameters(ctx: Context) -> None:
    ctx.watch(list(nn.Linear(3, 2).parameters()))  # type: ignore[arg-type]


def watch_meta(ctx: Context) -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    ctx.watch(model)


def initialize_meta(ctx: Context) -> None:
    ctx.initialize(nn.Linear(3, 2, device="meta"))


def unknown_axis(ctx: Context) -> None:
    ctx.group("vpp")


def unknown_coordinate(ctx: Context) -> None:
    ctx.coordinates["zero"]


def uneven_microbatches(ctx: Context) -> None:
    ctx.microbatches(3)


def no_step(ctx: Context) -> None:
    watched(ctx)(X).sum().backward()


def two_of_a_name(ctx: Context) -> None:
    model = nn.Linear(3, 2)
    model.module = nn.Linear(3, 2)
    ctx.watch(model)


@pytest.mark.parametrize(
    ("misuse", "message", "advice"),
    [
        (
            step_without_watch,
            "ctx.step was entered before ctx.watch was called",
            r"call ctx.watch\(model",
        ),
        (step_in_step, "ctx.step was entered inside step 0", "leave `with ctx.step"),
        (microbatch_outside, "ctx.microbatch was entered outside ctx.step", "put it inside"),
        (
            microbatch_in_microbatch,
            r"ctx.microbatch\(1\) was entered inside micro-batch 0",
            "leave",
        ),
        (microbatch_twice, r"ctx.microbatch\(7\) was entered twice in step 0", "number"),
        (
            forwards_in_one_microbatch,
            r"ctx.microbatch\(7\) was entered twice in step 0.*forward",
            "its own number",
        ),
        (follow_a_module, "ctx.follow was given a Linear", "a stage of torch.distributed.pipe"),
        (part_of_no_module, "given as a dict with a builtin_function", "a dict of its parts"),
        (loss_outside, "ctx.loss was called outside ctx.microbatch", "call it once in each"),
        (loss_twice, "ctx.loss was called twice in one micro-batch", "report one value"),
        (norm_outside, "ctx.grad_norm was called outside ctx.step", "call it once in each"),
        (norm_twice, "ctx.grad_norm was called twice in one step", "report one value"),
        (watch_twice, "ctx.watch was called twice", "once, before the first step, with one model"),
        (loss_of_nothing, "ctx.loss was given None", "a tensor or a number"),
        (norm_in_a_dictionary, r"ctx.grad_norm was given {'norm': 1.0}", "a tensor or a number"),
        (watch_parameters, "the model was given as a list with a Parameter in it", "one nn.Module"),
        (watch_meta, r"meta device \(weight", r"call model.to_empty"),
        (initialize_meta, r"meta device \(weight", r"call model.to_empty"),
        (unknown_axis, r"ctx.group\('vpp'\): there is no such axis", "one of pp, .*mean 'pp'"),
        (unknown_coordinate, r"ctx.coordinates\['zero'\]: there is no such", "of tp, cp, dp, pp"),
        (uneven_microbatches, "cannot be divided evenly among dp=2", "a multiple of 2"),
        (no_step, "a_program:train never called ctx.step", "wrap each optimizer step in"),
        (two_of_a_name, "two parameters are called 'weight'", "rename"),
    ],
)
def test_misuse_of_the_context_raises_an_error_with_advice(
    record: Any, misuse: Callable[[Context], None], message: str, advice: str
) -> None:
    point = {"dp": 2} if misuse is uneven_microbatches else {}
    with pytest.raises(ProgramError, match=f"{message}.*{advice}"):
        record(misuse, point=point)


def test_annotations_must_be_a_path_or_a_mapping(record: Any) -> None:
    with pytest.raises(AnnotationError, match=r"annotations is a list; it must be the path"):
        record(lambda ctx: ctx.watch(nn.Linear(3, 2), annotations=["gpt.yaml"]))


@pytest.mark.parametrize("error", [ValueError("my own"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_propagates_and_recorded_values_are_kept(
    assign: Any, error: BaseException
) -> None:
    assignment = assign()

    def train(ctx: Context) -> None:
        model = nn.Linear(3, 2)
        ctx.watch(model)
        for step in range(2):
            with ctx.step(), ctx.microbatch(0):
                model(X).sum().backward()
                if step == 1:
                    raise error

    with pytest.raises(type(error)) as raised:
        program.record(assignment, train)
    assert raised.value is error
    with pytest.raises(TraceError, match="has no End event"):
        Trace.open(assignment.trace)
    rank = Trace.open(assignment.trace, allow_incomplete=True).ranks[0]
    assert [event.step for event in rank.steps] == [0]
    assert [id.kind for id in rank.tensors if id.step == 1] == ["input", "activation"]


def test_the_programs_own_error_propagates_if_the_trace_cannot_be_written(
    assign: Any, tmp_path: Path
) -> None:
    assignment = assign()

    def train(ctx: Context) -> None:
        watched(ctx)
        events = Path(assignment.trace) / "rank0" / "events.jsonl"
        events.mkdir()  # nothing can be appended to a folder
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        program.record(assignment, train)


def test_a_program_may_catch_an_exception_that_ends_a_step(record: Any) -> None:
    """For example, if the data run out; the next step gets the next number."""

    def train(ctx: Context) -> None:
        model = watched(ctx)
        for step in range(3):
            try:
                with ctx.step(), ctx.microbatch(0):
                    model(X).sum().backward()
                    if step == 1:
                        raise StopIteration
            except StopIteration:
                continue

    run = record(train)
    assert [event.step for event in run.rank.steps] == [0, 2]


def test_leaving_a_step_with_break_is_not_an_error(record: Any) -> None:
    def train(ctx: Context) -> None:
        model = watched(ctx)
        for _ in range(3):
            with ctx.step():
                with ctx.microbatch(0):
                    model(X).sum().backward()
                break

    assert [event.step for event in record(train).rank.steps] == [0]


def test_the_default_dtype_of_torch_is_restored_after_an_error(record: Any) -> None:
    seen = []

    def train(ctx: Context) -> None:
        seen.append(torch.get_default_dtype())
        raise ValueError

    with pytest.raises(ValueError):
        record(train, dtype="float64", watch_casts=True)
    assert seen == [torch.float64]
    assert torch.get_default_dtype() == torch.float32


def test_a_directory_that_already_holds_a_trace_is_refused(
    assign: Callable[..., Assignment],
) -> None:
    from pytest_trainsafe.trace.writer import TraceWriteError

    assignment = assign()

    def train(ctx: Context) -> None:
        watched(ctx)
        with ctx.step():
            pass

    program.record(assignment, train)
    with pytest.raises(TraceWriteError, match="already holds a trace"):
        program.record(assignment, train)
