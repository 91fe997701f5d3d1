"""Modules that torch shards, by tensor and by data, are captured, each rank as that rank."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from pytest_trainsafe.judges.refine.graphs.modules import capture, untraced
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove

WIDTH, INNER, WORDS, SAMPLES, TOKENS = 6, 8, 10, 2, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        return self.head(x + self.down(functional.gelu(self.up(self.norm(x)))))


def plan(kind, planted):
    """How each module is sharded; the planted bugs leave out what sums over the ranks."""
    if kind == "sequence":
        norm = {} if planted else {"norm": SequenceParallel()}
        return norm | {
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
    whole = ColwiseParallel(output_layouts=Replicate())
    cut = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    return {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(output_layouts=Partial() if planted else Replicate()),
        "head": cut if kind == "loss" else whole,
    }


def program(kind, planted, ranks):
    """The loss and the gradients of all parameters."""

    def step(given):
        with untraced():
            model = Block().double()
            if ranks > 1:
                mesh = DeviceMesh("cpu", torch.arange(ranks))
                parallelize_module(model, mesh, plan(kind, planted))
        placed = {
            name: DTensor.from_local(given[name], mesh, each.placements, run_check=False)
            if isinstance(each, DTensor)
            else given[name]
            for name, each in model.named_parameters()
        }
        logits = torch.func.functional_call(model, placed, (given["x"],)).flatten(0, 1)
        labels = torch.arange(SAMPLES * TOKENS) * 3 % WORDS
        with loss_parallel():
            loss = functional.cross_entropy(logits, labels)
            loss = loss.to_local() if isinstance(loss, DTensor) else loss
            grads = torch.autograd.grad(loss, [given[name] for name in placed])
        named = zip(placed, grads, strict=True)
        return {"loss": loss, **{f"grad.{name}": each for name, each in named}}

    return step


def arguments(kind, ranks):
    def drawn(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    tokens = TOKENS // ranks if kind == "sequence" else TOKENS
    return {
        "x": drawn(SAMPLES, tokens, WIDTH).detach(),
        "norm.weight": drawn(WIDTH), "norm.bias": drawn(WIDTH),
        "up.weight": drawn(INNER // ranks, WIDTH), "up.bias": drawn(INNER // ranks),
        "down.weight": drawn(WIDTH, INNER // ranks), "down.bias": drawn(WIDTH),
        "head.weight": drawn(WORDS // ranks, WIDTH),
    }  # fmt: skip


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "sequence", "loss"])
def test_a_block_that_parallelize_module_shards(kind, planted):
    sequential = capture(program(kind, planted, 1), arguments(kind, 1), name="sequential")
    ranks = [
        capture(program(kind, planted, 2), arguments(kind, 2), rank=rank, ranks=2)
        for rank in range(2)
    ]
    given = stated_problem(sequential, ranks, {
        "mesh": {"tp": 2},
        "inputs": {
            "x": "concat 1" if kind == "sequence" else "replica",
            "norm.weight, norm.bias, down.bias": "replica",
            "up.weight, up.bias, head.weight": "concat 0",
            "down.weight": "concat 1",
        },
    })  # fmt: skip
    found = prove(given)
    assert isinstance(found, Refutation if planted else Proof)
    if isinstance(found, Refutation) and kind == "sequence":
        assert set(found.wrong) == {"grad.norm.weight", "grad.norm.bias"}


def fully_sharded(planted, ranks):
    """The gradients of a model under FSDP2; the planted bug does not average them."""

    def step(given):
        with untraced():
            model: Any = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)).double()
            mesh = DeviceMesh("cpu", torch.arange(ranks)) if ranks > 1 else None
        for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
            module, _, own = name.rpartition(".")
            setattr(model.get_submodule(module), own, nn.Parameter(given[name]))
        if ranks > 1:
            fully_shard(model, mesh=mesh)
            if planted:
                model.set_gradient_divide_factor(1.0)
        model(given["x"]).square().mean().backward()
        return {
            f"grad.{name}": each.grad.to_local() if ranks > 1 else each.grad
            for name, each in model.named_parameters()
        }

    return step


@pytest.mark.parametrize("planted", [False, True])
def test_a_model_under_fsdp2(planted):
    shapes = {"0.weight": (6, 4), "0.bias": (6,), "2.weight": (4, 6), "2.bias": (4,)}
    weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    whole, part = (torch.zeros(rows, 4, dtype=torch.float64) for rows in (4, 2))
    sequential = capture(fully_sharded(planted, 1), {"x": whole, **weights}, name="sequential")
    ranks = [
        capture(fully_sharded(planted, 2), {"x": part, **weights}, rank=rank, ranks=2)
        for rank in range(2)
    ]
    given = stated_problem(sequential, ranks, {
        "mesh": {"dp": 2},
        "inputs": {"x": "concat 0", ", ".join(shapes): "replica"},
        "outputs": {f"grad.{name}": f"concat 0 of grad.{name}" for name in shapes},
    })  # fmt: skip
    found = prove(given)
    assert isinstance(found, Refutation if planted else Proof)
