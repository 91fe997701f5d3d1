"""Small trainings with dropout on one or two ranks, without a fault and with one RNG fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, get_worker_info

from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.trace.run_spec import RunSpec, arguments_of
from pytest_trainsafe.trace.writer import manifest_of, write_manifest

BATCH, TOKENS, WIDTH, INNER = 2, 4, 8, 16

ANNOTATIONS = {
    "cp_order": "contiguous",
    "parameters": {
        "first.weight": {"tp_dim": 0},
        "first.bias": {"tp_dim": 0},
        "second.weight": {"tp_dim": 1},
    },
    "modules": {
        "*": {"output": {"cp_dim": 1}},
        "first": {"output": {"cp_dim": 1, "tp_dim": -1}},
        "inner_drop": {"output": {"cp_dim": 1, "tp_dim": -1}},
    },
}


class Stream:
    """A random state that replaces the default generator's in a `with` block."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def used(self) -> Iterator[None]:
        outer = torch.get_rng_state()
        torch.set_rng_state(self._state)
        yield
        self._state = torch.get_rng_state()
        torch.set_rng_state(outer)


class Block(nn.Module):
    """A column-parallel and a row-parallel linear layer, each followed by a dropout."""

    def __init__(self, ctx: Any, inner: Stream, fault: str) -> None:
        super().__init__()
        self.group = ctx.group("tp")
        self.inner, self.fault = inner, fault
        self.recompute = ctx.point.get("recompute", False)
        self.first = nn.Linear(WIDTH, INNER // ctx.point.size("tp"))
        self.inner_drop = nn.Dropout(0.25)
        self.second = nn.Linear(INNER // ctx.point.size("tp"), WIDTH, bias=False)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(_SumGradients.apply(x, self.group)))
        with self.inner.used():
            x = self.inner_drop(x)
        x = _Sum.apply(self.second(x), self.group)
        if self.recompute:
            kept = self.fault != "recomputes without the random state"
            x = checkpoint(self.end, x, use_reentrant=False, preserve_rng_state=kept)
        else:
            x = self.end(x)
        if self.fault == "drops in evaluation mode":
            return F.dropout(x, 0.1)
        return x

    def end(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.tanh(x))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def train(ctx: Any, fault: str = "") -> None:
    """Train a Block for two steps of two micro-batches, with an evaluation between them."""
    at = ctx.coordinates
    inner = 1000 + at["dp"] * 100 + at["cp"] * 10
    if fault != "one stream in a sharded region":
        inner += at["tp"]
    model = Block(ctx, Stream(inner), fault)
    ctx.initialize(model, annotations=ANNOTATIONS)
    seed = ctx.seed
    if fault != "one seed for all data-parallel ranks":
        seed += at["dp"] * 100
    if fault != "one seed for all context-parallel ranks":
        seed += at["cp"] * 10
    if fault == "another seed on each tensor-parallel rank":
        seed += at["tp"]
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    held_out = torch.Generator().manual_seed(7)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    loss = model(_batch(ctx, step, index)).square().mean()
                    loss.backward()
            _reduce(ctx, model)
            optimizer.step()
            optimizer.zero_grad()
        _evaluate(
            model, None if fault == "evaluates from the training's stream" else held_out, fault
        )


def _evaluate(model: nn.Module, generator: torch.Generator | None, fault: str) -> None:
    if fault != "evaluates in training mode":
        model.eval()
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=generator)
    with torch.no_grad():
        model(x)
    model.train()


def _batch(ctx: Any, step: int, index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + index)
    whole = torch.randn(BATCH, TOKENS, WIDTH, generator=generator)
    return whole.chunk(ctx.point.size("cp"), dim=1)[ctx.coordinates["cp"]]


def _reduce(ctx: Any, model: nn.Module) -> None:
    for parameter in model.parameters():
        for axis in ("dp", "cp"):
            dist.all_reduce(parameter.grad, group=ctx.group(axis))


def draws_its_parameters(ctx: Any, fault: str = "") -> None:
    """Train a model whose parameters every rank initialises from its own generator."""
    torch.manual_seed(ctx.seed + (ctx.rank if fault else 0))
    model = nn.Linear(WIDTH, WIDTH)
    if fault == "then broadcast":
        dist.barrier(ctx.group("dp"))
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                model(_batch(ctx, 0, index)).sum().backward()
        _reduce(ctx, model)
        optimizer.step()


def overwrites_its_parameters(ctx: Any, fault: str = "") -> None:
    """Train a sharded layer and, unless it is left out, a whole one, which `ctx.initialize` fills.

    Their own values are drawn, or are those of memory that no operation has written.
    """
    torch.manual_seed(ctx.seed + (ctx.rank if "seeded by rank" in fault else 0))
    model: Any = Block(ctx, Stream(1000 + ctx.rank), "")
    if "only parts" not in fault:
        model = nn.Sequential(model, nn.Linear(WIDTH, WIDTH))
    if fault == "unwritten memory":
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                memory = torch.full_like(parameter, ctx.rank)
                setattr(module, name, nn.Parameter(memory))
    ctx.initialize(model, annotations=ANNOTATIONS)
    ctx.initialize(model, annotations=ANNOTATIONS)  # what the first call filled is not its own
    if "then broadcast" in fault:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0, group=ctx.group("dp"))
    if "then wrapped" in fault:
        model = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                model(_batch(ctx, 0, index)).square().mean().backward()
        optimizer.step()


class DTensorBlock(nn.Module):
    """Two linear layers and two dropouts that compute with DTensors: a sharded one and replicas."""

    def __init__(self, ctx: Any, inner: Stream) -> None:
        super().__init__()
        self.inner = inner
        self.first, self.inner_drop = nn.Linear(WIDTH, INNER), nn.Dropout(0.25)
        self.second, self.drop = nn.Linear(INNER, WIDTH), nn.Dropout(0.25)
        ways = {"first": ColwiseParallel, "second": RowwiseParallel}
        plan = {name: way(use_local_output=False) for name, way in ways.items()}
        parallelize_module(self, ctx.mesh["tp"], plan)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        with self.inner.used():
            x = self.inner_drop(x)
        whole: torch.Tensor = self.drop(self.second(x)).to_local()
        return whole


def drops_dtensors(ctx: Any, fault: str = "") -> None:
    """Train a model whose dropouts receive DTensors."""
    inner = 0 if fault == "one stream in a sharded region" else ctx.coordinates["tp"]
    model = DTensorBlock(ctx, Stream(1000 + inner))
    ctx.initialize(model)
    torch.manual_seed(5 + (ctx.rank if fault == "another seed on each rank" else 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    ctx.watch(model, optimizer)
    with ctx.step():
        with ctx.microbatch(0):
            model(_batch(ctx, 0, 0)).sum().backward()
        optimizer.step()


def draws_its_own_shards(ctx: Any, fault: str = "") -> None:
    """Train a model with FSDP2, in which every rank draws its shards from a seed of its own."""
    torch.manual_seed(ctx.seed + ctx.rank)
    model = nn.Linear(WIDTH, WIDTH)
    fully_shard(model, mesh=ctx.mesh["dp"])
    model.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                model(_batch(ctx, 0, index)).sum().backward()
        optimizer.step()


class Noisy(Dataset[torch.Tensor]):
    """Examples with noise from a generator that the dataset holds."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((TOKENS, WIDTH), index + float(self.rng.normal()))


def reseed(worker: int) -> None:
    """Give the worker's copy of the dataset a generator with the worker's seed."""
    info = get_worker_info()
    assert info is not None
    info.dataset.rng = np.random.default_rng(info.seed)  # type: ignore[attr-defined]


def reseed_alike(worker: int) -> None:
    """Seed NumPy with the same number in every worker."""
    np.random.seed(0)


class GloballyNoisy(Noisy):
    """Examples with noise from NumPy's global generator."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((TOKENS, WIDTH), index + float(np.random.normal()))


def loads_with_workers(ctx: Any, fault: str = "") -> None:
    """Train with a loader of two workers, whose dataset draws noise."""
    dataset = GloballyNoisy() if "global" in fault else Noisy()
    init = reseed_alike if "global" in fault else None if fault else reseed
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, worker_init_fn=init)
    model = nn.Linear(WIDTH, WIDTH)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index, batch in enumerate(loader):
            with ctx.microbatch(index):
                model(batch.to(ctx.dtype)).sum().backward()
        optimizer.step()


def record_all(specs: list[dict[str, Any]]) -> None:
    """Record programs one after the other in this group of ranks; this function is launched."""
    import msgspec

    for data in specs:
        assignment = msgspec.convert(data, Assignment, strict=False)
        name = assignment.spec.program.partition(":")[2]
        fault = str(assignment.spec.keywords.get("fault", ""))
        program.record(assignment, partial(globals()[name], fault=fault))
    if dist.is_initialized():
        dist.destroy_process_group()


def make_spec(name: str, fault: str, point: dict[str, Any], trace: Path) -> dict[str, Any]:
    """An Assignment to record a program, as plain data; writes the manifest of its trace."""
    import msgspec

    spec = RunSpec(
        program=f"{__name__}:{name}",
        arguments=arguments_of({"fault": fault}),
        axes=tuple(point.items()),
        dtype="float32",
        seed=5,
        adapters=BUILT_IN,
    )
    write_manifest(trace, manifest_of(spec, "cpu"))
    made: dict[str, Any] = msgspec.to_builtins(Assignment(spec=spec, trace=str(trace)))
    return made
