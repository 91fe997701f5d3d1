"""A pipeline schedule's forwards and backwards are recorded as if each micro-batch ran alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 36).reshape(3, 4, 3)


class Model(nn.Module):
    """Two layers that can be called as a whole, or one by one."""

    def __init__(self, recompute: bool | None) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"0": nn.Linear(3, 3), "1": nn.Linear(3, 3)})
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            if self.recompute is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.recompute)
        return x.tanh()


def plain(ctx: Context, model: nn.Module) -> None:
    for index in range(3):
        with ctx.microbatch(index):
            model(X[index].clone().requires_grad_()).square().sum().backward()


def reentered(ctx: Context, model: nn.Module) -> None:
    """One forward ahead, each backward in its micro-batch."""
    schedule(ctx, model, ctx.microbatch)


def inferred(ctx: Context, model: nn.Module) -> None:
    """One forward ahead, the backwards outside of every micro-batch."""
    schedule(ctx, model, lambda _: nullcontext())


def inside_the_next(ctx: Context, model: nn.Module) -> None:
    """Each backward while the next micro-batch is open."""
    losses: list[Tensor] = []
    for index in range(3):
        with ctx.microbatch(index):
            losses.append(model(X[index].clone().requires_grad_()).square().sum())
            if index:
                losses[index - 1].backward()
    losses[2].backward()


def schedule(ctx: Context, model: nn.Module, backward: Callable[[int], Any]) -> None:
    losses: dict[int, Tensor] = {}
    for action in ("F0", "F1", "B0", "F2", "B2", "B1"):
        index = int(action[1])
        if action[0] == "F":
            with ctx.microbatch(index):
                losses[index] = model(X[index].clone().requires_grad_()).square().sum()
        else:
            with backward(index):
                losses[index].backward()


def values(run: Any) -> dict[Any, str]:
    return {id: digest for id, digest in run.hashes().items() if id.microbatch is not None}


@pytest.mark.parametrize("recompute", [None, False, True])
@pytest.mark.parametrize("order", [reentered, inferred, inside_the_next])
def test_the_order_of_a_pipeline_schedule_does_not_change_recorded_values(
    record: Any, order: Callable[[Context, nn.Module], None], recompute: bool | None
) -> None:
    def train(run: Callable[[Context, nn.Module], None]) -> Callable[[Context], None]:
        def program(ctx: Context) -> None:
            model = Model(recompute)
            ctx.initialize(model)
            ctx.watch(model)
            with ctx.step():
                run(ctx, model)

        return program

    alone, scheduled = record(train(plain)), record(train(order))
    # The input, the outputs, the gradients of outputs and those of parameters.
    assert len(values(alone)) == 3 * (1 + 3 + 3 + 4)
    assert values(scheduled) == values(alone)
    assert len(scheduled.rank.inputs) == 3
    assert scheduled.rank.steps[0].microbatches == 3


def chunks() -> Iterator[nn.ModuleDict]:
    """The layers of Model, one in each chunk, under their names in the whole model."""
    for name in ("0", "1"):
        yield nn.ModuleDict({"layers": nn.ModuleDict({name: nn.Linear(3, 3)})})


def test_a_list_of_chunks_is_recorded_as_one_model(record: Any) -> None:
    def train(ctx: Context) -> None:
        held = list(chunks())
        ctx.initialize(held)
        ctx.watch(held, torch.optim.SGD([p for chunk in held for p in chunk.parameters()], 0.1))
        layers = [chunk.get_submodule(f"layers.{i}") for i, chunk in enumerate(held)]
        run_chunks(ctx, layers)

    assert_as_one_model(record, train)


def test_a_dict_of_parts_is_recorded_as_one_model_under_its_keys(record: Any) -> None:
    def train(ctx: Context) -> None:
        held = {"layers.0": nn.Linear(3, 3), "layers.1": nn.Linear(3, 3)}
        ctx.initialize(held)
        parameters = [p for part in held.values() for p in part.parameters()]
        ctx.watch(held, torch.optim.SGD(parameters, 0.1))
        run_chunks(ctx, list(held.values()))

    run = assert_as_one_model(record, train)
    assert len(run.rank.inputs) == 6  # of each chunk in each micro-batch


def run_chunks(ctx: Context, layers: list[nn.Module]) -> None:
    """Every chunk's forwards, then the backwards; no autograd graph connects the chunks."""
    with ctx.step():
        inputs = [[x.clone().requires_grad_() for x in X], []]
        outputs: list[list[Tensor]] = [[], []]
        for chunk, layer in enumerate(layers):
            for index in range(3):
                with ctx.microbatch(index):
                    outputs[chunk].append(layer(inputs[chunk][index]))
                if chunk == 0:
                    inputs[1].append(outputs[0][index].detach().requires_grad_())
        for index in range(3):
            outputs[1][index].tanh().square().sum().backward()
        for index in range(3):
            with ctx.microbatch(index):
                outputs[0][index].backward(inputs[1][index].grad)


def assert_as_one_model(record: Any, train: Callable[[Context], None]) -> Any:
    def whole(ctx: Context) -> None:
        model = Model(None)
        ctx.initialize(model)
        ctx.watch(model, torch.optim.SGD(model.parameters(), 0.1))
        with ctx.step():
            plain(ctx, model)

    alone, cut = record(whole).hashes(), record(train).hashes()
    wanted = {id: digest for id, digest in alone.items() if id.module.startswith("layers.")}
    assert len(wanted) == 3 * (2 + 2 + 4) + 2 * 4 + 4  # and parameters, before and after
    assert {id: digest for id, digest in cut.items() if id in wanted} == wanted
    return record(train)


def test_a_loss_may_be_reported_after_its_micro_batch(record: Any) -> None:
    def train(ctx: Context) -> None:
        model = Model(None)
        ctx.watch(model)
        with ctx.step():
            losses = []
            for index in range(3):
                with ctx.microbatch(index):
                    losses.append(model(X[index]).sum())
            for index, loss in enumerate(losses):
                ctx.loss(loss, index)

    run = record(train)
    assert [id.microbatch for id in run.rank.tensors if id.kind == "loss"] == [0, 1, 2]


def test_parameter_gradients_are_assigned_to_micro_batches_without_recorded_activations(
    record: Any,
) -> None:
    def train(ctx: Context) -> None:
        model = Model(None)
        ctx.initialize(model)
        ctx.watch(model)
        with ctx.step():
            inferred(ctx, model)

    few, all_kinds = record(train, kinds=("param_grad",), modules=("none",)), record(train)
    wanted = {id: digest for id, digest in all_kinds.hashes().items() if id.kind == "param_grad"}
    assert few.hashes() == wanted
    assert len(wanted) == 12


class Stage:
    """Has the methods with which schedules of torch.distributed.pipelining call a stage."""

    def __init__(self, model: nn.Module, inputs: list[Tensor]) -> None:
        self.model, self.inputs = model, inputs
        self.losses: dict[int, Tensor] = {}

    def forward_one_chunk(self, fwd_chunk_id: int, args: tuple[Tensor, ...]) -> Tensor:
        self.losses[fwd_chunk_id] = self.model(*args).square().sum()
        return self.losses[fwd_chunk_id]

    def backward_one_chunk(self, bwd_chunk_id: int) -> None:
        """Computes the input's gradients, without those of weights."""
        self.losses[bwd_chunk_id].backward(inputs=[self.inputs[bwd_chunk_id]], retain_graph=True)

    def backward_weight_one_chunk(self, bwd_chunk_id: int) -> None:
        self.losses[bwd_chunk_id].backward(inputs=list(self.model.parameters()))


@pytest.mark.parametrize("steps", [[range(3)], [range(2), range(1)]], ids=["one", "two"])
def test_micro_batches_of_a_followed_pipelining_stage_are_recorded(
    record: Any, steps: list[range]
) -> None:
    """Also if a schedule runs several times in one step of the optimizer."""

    def train(ctx: Context) -> None:
        model = Model(None)
        ctx.initialize(model)
        ctx.watch(model)
        inputs = [x.clone().requires_grad_() for x in X]
        stage = Stage(model, inputs)
        assert list(ctx.follow(stage, 3)) == [0, 1, 2]
        model(X[0])  # to learn shapes
        stage.forward_one_chunk(0, (inputs[0],))  # to evaluate
        for _ in range(2):
            with ctx.step():
                done = 0
                for own in steps:
                    stage.inputs = inputs[done:]
                    for index in own:
                        stage.forward_one_chunk(index, (stage.inputs[index],))
                    for index in sorted(own, key=lambda index: index != 1):
                        stage.backward_one_chunk(bwd_chunk_id=index)
                    for index in reversed(own):
                        stage.backward_weight_one_chunk(index)
                    done += len(own)

    def alone(ctx: Context) -> None:
        model = Model(None)
        ctx.initialize(model)
        ctx.watch(model)
        for _ in range(2):
            with ctx.step():
                plain(ctx, model)

    assert values(record(train)) == values(record(alone))


def test_a_schedule_that_runs_more_micro_batches_than_a_step_has_is_an_error(record: Any) -> None:
    def train(ctx: Context) -> None:
        model = Model(None)
        ctx.watch(model)
        stage = Stage(model, [*X])
        ctx.follow(stage, 3)
        with ctx.step():
            for index in (0, 1, 0, 1):
                stage.forward_one_chunk(index, (X[index],))

    with pytest.raises(ProgramError, match=r"ran micro-batch 3 .* only 3 micro-batches"):
        record(train)
