"""Wrapped models are recorded with the names and the values of the unwrapped model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.facts import Site

X = torch.linspace(-1, 1, 24).reshape(2, 4, 3)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 8), nn.Linear(8, 4)])
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return self.norm(x)


def train_model(model: nn.Module, wrap: Any = lambda model: model) -> Any:
    """Watch a wrapped model and train it two steps of two micro-batches."""

    def train(ctx: Context) -> None:
        _ = ctx.mesh
        wrapped = wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ctx.watch(wrapped, optimizer)
        for _ in range(2):
            with ctx.step():
                for index in ctx.microbatches(2):
                    with ctx.microbatch(index):
                        loss = wrapped(X[index]).square().sum()
                        ctx.loss(loss)
                        loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    return train


@pytest.fixture
def bare(record: Any) -> tuple[nn.Module, Any]:
    """An untrained model, and the recording of a training of its copy."""
    model = Small()
    run = record(train_model(copy.deepcopy(model)))
    dist.destroy_process_group()
    return model, run


def test_a_ddp_model_is_recorded_as_the_unwrapped_model(record: Any, bare: Any) -> None:
    model, expected = bare
    run = record(train_model(model, DistributedDataParallel))
    assert run.hashes() == expected.hashes()
    assert list(run.rank.modules) == list(expected.rank.modules)
    assert run.rank.modules[""].cls == "Small"
    assert len(run.rank.inputs) == 4


def test_a_ddp_model_with_no_sync_is_recorded_as_the_unwrapped_model(
    record: Any, bare: Any
) -> None:
    model, expected = bare

    def train(ctx: Context) -> None:
        _ = ctx.mesh
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ctx.watch(wrapped, optimizer)
        for _ in range(2):
            with ctx.step():
                with ctx.microbatch(0), wrapped.no_sync():
                    loss = wrapped(X[0]).square().sum()
                    ctx.loss(loss)
                    loss.backward()
                with ctx.microbatch(1):
                    loss = wrapped(X[1]).square().sum()
                    ctx.loss(loss)
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

    assert record(train).hashes() == expected.hashes()


def test_a_checkpoint_wrapper_does_not_change_what_is_recorded(record: Any, bare: Any) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model, expected = bare
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    run = record(train_model(model))
    assert run.hashes() == expected.hashes()
    assert list(run.rank.modules) == list(expected.rank.modules)


def test_an_fsdp2_model_is_recorded_as_the_unwrapped_model_with_dtensor_layouts(
    record: Any, bare: Any
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, expected = bare

    def wrap(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
        for layer in model.get_submodule("layers").children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def train(ctx: Context) -> None:
        _ = ctx.mesh
        train_model(wrap(model))(ctx)

    run = record(train)
    assert run.hashes() == expected.hashes()
    sources = {e.layout_source for id, e in run.rank.tensors.items() if id.kind == "main_grad"}
    assert sources == {"dtensor"}


def test_dtensors_are_recorded_with_layouts_from_their_placements(record: Any) -> None:
    from torch.distributed.tensor import Partial, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(3, 4, bias=False))

    def train(ctx: Context) -> None:
        style = ColwiseParallel(use_local_output=False)
        parallelize_module(model, ctx.mesh["tp"], {"0": style})
        weight = model.get_parameter("0.weight")
        assert isinstance(weight, DTensor)
        assert weight.placements == (Shard(0),)
        ctx.watch(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        with ctx.step(), ctx.microbatch(0):
            out = model(X[0])
            assert out.placements == (Shard(1),)
            loss = out.square().sum()
            assert isinstance(loss.placements[0], Partial)
            ctx.loss(loss)
            loss.backward()

    run = record(train)
    for id, event in run.rank.tensors.items():
        assert event.layout_source == ("default" if id.kind == "input" else "dtensor"), id
    weight = run.get("param", "0.weight")
    grad = run.get("param_grad", "0.weight")
    out = X[0] @ weight.t()
    assert torch.allclose(run.get("activation", "0.output"), out)
    assert torch.allclose(grad, (2 * out).t() @ X[0])
    assert torch.equal(run.get("main_grad", "0.weight"), grad)


@pytest.mark.parametrize("watched", ["wrapper", "model"])
@pytest.mark.parametrize("syncs", [True, False])
def test_whether_a_backward_of_a_wrapper_reduces_is_recorded(
    record: Any, syncs: bool, watched: str
) -> None:
    def train(ctx: Context) -> None:
        _ = ctx.mesh
        model = Small().to(ctx.dtype)
        wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(wrapped if watched == "wrapper" else model, optimizer)
        with ctx.step():
            with ctx.microbatch(0), wrapped.no_sync():
                wrapped(X[0].to(ctx.dtype)).square().sum().backward()
            if syncs:
                with ctx.microbatch(1):
                    wrapped(X[1].to(ctx.dtype)).square().sum().backward()

    found = [site.what for site in record(train).rank.events_of(Site)]
    assert ("sync" in found, "no_sync" in found) == (syncs, True)


def test_what_a_program_passes_to_a_module_in_a_container_is_recorded(record: Any) -> None:
    first, second = Small(), Small()
    container = nn.ModuleDict({"nets": nn.ModuleList([first, second])})

    def train(ctx: Context) -> None:
        optimizer = torch.optim.SGD(container.parameters(), lr=0.1)
        ctx.watch(container, optimizer)
        with ctx.step():
            for index in range(2):
                with ctx.microbatch(index):
                    hidden = first(X[index])
                # As a pipeline does, whose last stage calls the embedding again.
                with ctx.microbatch(index):
                    second((hidden + first(X[index]))[:, :3]).square().sum().backward()
            optimizer.step()

    run = record(train)
    given = [event.hashes for event in run.rank.inputs]
    assert torch.equal(run.get("input", "input.0", microbatch=0), X[0])
    assert len(given) == 4
    assert given[0] == given[1] != given[2] == given[3]
