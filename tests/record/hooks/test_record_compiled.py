"""Recording adds no graph breaks to compiled models, and records values at region boundaries."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.compat.compiler import compiled_regions
from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 24).reshape(2, 4, 3)

# torch.compile itself reads `.grad`; its own filter does not hide a warning turned into an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Norm(nn.LayerNorm):
    """A module that every torch release compiles; torch 2.10 runs `nn.LayerNorm` itself eagerly."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 8), nn.Linear(8, 4)])
        self.norm: nn.LayerNorm = Norm(4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return self.norm(x)


def same(model: nn.Module) -> nn.Module:
    return model


def wrapped(model: nn.Module) -> Any:
    return torch.compile(model, backend="aot_eager", fullgraph=True)


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager", fullgraph=True)
    return model


def norm_wrapped(model: Any) -> nn.Module:
    model.norm = wrapped(model.norm)
    return model


def norm_in_place(model: Any) -> nn.Module:
    in_place(model.norm)
    return model


def a_function(model: nn.Module) -> Any:
    return torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)


def training(
    model: nn.Module,
    before: Callable[[nn.Module], Any] = same,
    after: Callable[[nn.Module], Any] = same,
) -> Any:
    """Train two steps of two micro-batches, compiled before or after ctx.watch."""

    def train(ctx: Context) -> None:
        watched = before(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ctx.watch(watched, optimizer)
        called = after(watched)
        for _ in range(2):
            with ctx.step():
                for index in range(2):
                    with ctx.microbatch(index):
                        loss = called(X[index]).square().sum()
                        ctx.loss(loss)
                        loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    return train


@pytest.fixture
def plain(record: Any) -> Iterator[tuple[nn.Module, Any]]:
    """An untrained model, and the recording of a training of its copy."""
    model = Small()
    yield model, record(training(copy.deepcopy(model)))
    torch.compiler.reset()


#: The modules that have their own forward.
WHOLE = {"", "layers.0", "layers.1", "norm"}


@pytest.mark.parametrize(
    ("before", "after", "unseen"),
    [
        (wrapped, same, WHOLE - {""}),
        (in_place, same, WHOLE - {""}),
        (same, in_place, WHOLE - {""}),
        (norm_wrapped, same, set()),
        (norm_in_place, same, set()),
        (same, norm_in_place, set()),
        (same, wrapped, WHOLE - {""}),
        (same, a_function, WHOLE),
    ],
    ids=[
        *("wrapped", "in place", "in place later", "part wrapped", "part in place"),
        *("part later", "wrapped later", "function"),
    ],
)
def test_values_at_the_boundary_of_a_compiled_region_are_recorded_without_graph_breaks(
    record: Any, plain: Any, before: Any, after: Any, unseen: set[str]
) -> None:
    model, expected = plain
    regions = compiled_regions()

    run = record(training(model, before, after))

    assert compiled_regions() == regions + 1
    assert run.rank.note("ran") == ["compile"]
    assert set(run.rank.note("compiled")) == unseen
    flows = ("input", "activation", "activation_grad")
    wanted = {
        id: digest
        for id, digest in expected.hashes().items()
        if id.kind not in flows or id.module not in unseen
    }
    assert run.hashes() == wanted
    assert {name: e.cls for name, e in run.rank.modules.items()} == {
        name: e.cls for name, e in expected.rank.modules.items()
    }
    assert len(run.rank.inputs) == (0 if "" in unseen else 4)


def test_a_module_is_recorded_whether_or_not_torch_compiles_it_in_place(record: Any) -> None:
    """torch 2.10 runs its own modules eagerly if they are compiled in place; 2.13 compiles them."""
    model = Small()
    model.norm = nn.LayerNorm(4)
    expected = record(training(copy.deepcopy(model)))
    regions = compiled_regions()

    run = record(training(model, norm_in_place))
    compiled = compiled_regions() > regions
    torch.compiler.reset()

    assert run.rank.note("ran") == (["compile"] if compiled else [])
    assert run.rank.note("compiled") == []
    assert run.hashes() == expected.hashes()


def test_a_compiled_module_inside_another_compiled_region_is_not_recorded(
    record: Any, plain: Any
) -> None:
    model, _ = plain

    def both(model: nn.Module) -> Any:
        return wrapped(norm_in_place(model))

    run = record(training(model, both))

    assert set(run.rank.note("compiled")) == WHOLE - {""}
    assert "norm.output" not in run.paths("activation")


@pytest.mark.parametrize("compile", [wrapped, in_place], ids=["wrapped", "in place"])
def test_a_trusted_run_of_a_compiled_model_is_eager(record: Any, plain: Any, compile: Any) -> None:
    model, expected = plain
    regions = compiled_regions()

    run = record(training(model, compile), trusted=True)

    assert compiled_regions() == regions
    assert run.rank.note("ran") == []
    assert run.hashes() == expected.hashes()
    assert "TORCHDYNAMO_DISABLE" not in os.environ


def test_a_trusted_run_adds_noise_to_all_modules_of_a_compiled_model(
    record: Any, plain: Any
) -> None:
    """Noise is added to the outputs of leaf modules, so the hooks of all modules must run."""
    model, _ = plain
    noisy = record(training(copy.deepcopy(model)), perturbation=2.0**-20)

    run = record(training(model, wrapped), perturbation=2.0**-20, trusted=True)

    assert run.hashes() == noisy.hashes()


class Broken(nn.Module):
    """Two layers with a graph break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def test_every_module_is_recorded_or_listed_as_compiled_despite_graph_breaks(record: Any) -> None:
    """Code compiled for one module also runs for others of its class, which were never traced."""
    model = nn.Sequential(nn.Linear(3, 3), Broken(), Broken(), nn.LayerNorm(3))
    called = torch.compile(model, backend="aot_eager")

    def train(ctx: Context) -> None:
        ctx.watch(model)
        for _ in range(2):
            with ctx.step(), ctx.microbatch(0):
                called(X[0]).square().sum().backward()

    run = record(train)
    torch.compiler.reset()

    recorded = {id.module for id in run.rank.tensors if id.kind == "activation"}
    inside = set(run.rank.note("compiled"))
    assert inside >= {"1.first", "1.second", "2.first", "2.second"}
    assert recorded | inside == {name for name, _ in model.named_modules()}
