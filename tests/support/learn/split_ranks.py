"""Programs of two ranks that divide the data, the layers or the weights, each with a fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS = 4


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        return grad


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Halves(nn.Module):
    """A hidden layer whose units are split between the ranks."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.front = nn.Linear(4, 4)
        torch.manual_seed(seed)
        self.into, self.back = nn.Linear(4, 6), nn.Linear(6, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.into(_Enter.apply(torch.tanh(self.front(x)))))
        return _Leave.apply(self.back(hidden))


def halves(seed: int, fault: str) -> None:
    """Ranks of tp with a layer that is split by hand."""
    torch.manual_seed(seed)
    model = Halves(seed if fault == "one seed" else seed + 10 * dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        optimizer.step()


def planned(seed: int, fault: str) -> None:
    """Ranks of tp with layers that torch splits, which get the same rows."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    own = dist.get_rank() if fault == "own rows" else 0
    draw = torch.Generator().manual_seed(7 * seed + own)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        optimizer.step()


def _trained(seed: int, batches: Iterator[Tensor], steps: int) -> None:
    torch.manual_seed(seed)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()


def readers(seed: int, fault: str) -> None:
    """Replicas that read their shares of an order that is drawn for each epoch."""
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(seed))
    rank, alone = dist.get_rank(), fault in ("own order", "all in own order")
    draw = torch.Generator().manual_seed(seed + 100 * (rank if alone else 0))

    def batches() -> Iterator[Tensor]:
        while True:
            order = torch.randperm(32, generator=draw)
            mine = order if fault == "all in own order" else order[rank::2]
            yield from data[mine].split(8)

    _trained(seed, batches(), 17)


def sampled(seed: int, fault: str) -> None:
    """Replicas whose examples a sampler divides."""
    rank = dist.get_rank()
    data = TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(seed)))
    own = rank if fault == "own seed" else 0
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        data, num_replicas=2, rank=rank, seed=seed + own
    )
    loader = DataLoader(data, batch_size=8, sampler=sampler)

    def batches() -> Iterator[Tensor]:
        for epoch in range(9):
            sampler.set_epoch(epoch)
            for (rows,) in loader:
                yield rows

    _trained(seed, batches(), 9)


class Noisy(nn.Module):
    """Gets examples, and how much noise they have."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        shown: Tensor = self.net(torch.cat([x, level[:, None]], 1))
        return shown


def noisy(seed: int, fault: str) -> None:
    """Replicas that draw a level of noise for each example."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(Noisy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    drawn = torch.Generator().manual_seed(seed + (0 if fault == "same noise" else dist.get_rank()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        x, level = torch.randn(8, 4, generator=data), torch.rand(8, generator=drawn)
        F.mse_loss(model(x, level), x).backward()
        optimizer.step()


class Scaled(nn.Module):
    """A layer with a scale for each output, which the wrapper ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.full((4, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.inner.weight * self.scale, self.inner.bias)


def scales(seed: int, fault: str) -> None:
    """Sharded layers with parameters that are not sharded, and reduced by hand."""
    torch.manual_seed(seed)
    model = nn.Sequential(Scaled(), nn.Tanh(), Scaled())
    ignored = {each.scale for each in model if isinstance(each, Scaled)}
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh, ignored_params=ignored)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        for each in ignored if fault != "ignored" else ():
            assert each.grad is not None
            dist.all_reduce(each.grad)
            each.grad /= 2
        optimizer.step()


def parts(seed: int, fault: str) -> None:
    """A sharded model that goes on with the parts that were kept, with another optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    draw = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    kept: list[Tensor] = []
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for each, old in zip(model.parameters(), kept, strict=False):
            each.to_local().data.copy_(old)  # type: ignore[attr-defined]
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4, generator=draw)).square().mean().backward()
            optimizer.step()
        kept = [each.to_local().detach().clone() for each in model.parameters()]  # type: ignore[attr-defined]
        for part in kept if fault == "part of rank 0" else ():
            dist.broadcast(part, src=0)


class Stage(nn.Module):
    """The first or the last part of a model, with a table of words."""

    def __init__(self, first: bool, tied: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 4))
        if not first and not tied:
            nn.init.uniform_(self.table)
        self.body = nn.Linear(4, 4)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            return torch.tanh(self.body(F.embedding(x, self.table)))
        return torch.tanh(self.body(x)) @ self.table.T


def stages(seed: int, fault: str) -> None:
    """Two stages that share a table of words."""
    torch.manual_seed(seed)
    first, tied = dist.get_rank() == 0, fault != "untied"
    stage = Stage(first, tied)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        optimizer.zero_grad()
        words = torch.randint(6, (9,), generator=draw)
        if first:
            sent = stage(words)
            dist.send(sent.detach(), dst=1)
            back = torch.empty_like(sent)
            dist.recv(back, src=1)
            sent.backward(back)
        else:
            entered = torch.empty(9, 4)
            dist.recv(entered, src=0)
            F.cross_entropy(stage(entered.requires_grad_()), words).backward()
            assert entered.grad is not None
            dist.send(entered.grad, dst=0)
        if tied and fault != "not summed":
            dist.all_reduce(stage.table.grad)
        optimizer.step()


def resumed(seed: int, fault: str) -> None:
    """Replicas that reduce by hand and draw their data, and go on with the random states."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    torch.manual_seed(100 * seed + dist.get_rank())
    states = [torch.get_rng_state(), torch.get_rng_state()]
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.set_rng_state(states[0 if fault == "one state" else dist.get_rank()])
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            for each in model.parameters():
                assert each.grad is not None
                dist.all_reduce(each.grad)
                each.grad /= 2
            optimizer.step()
        states = [torch.empty_like(states[0]), torch.empty_like(states[0])]
        dist.all_gather(states, torch.get_rng_state())


def pairs(seed: int, fault: str) -> None:
    """Replicas that match pairs, each against those of both ranks."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    rank = dist.get_rank()
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(6, 4, generator=draw)
        one = model(torch.cat([x, x + 0.1]))
        mine, its = F.normalize(one, dim=1).split(6)
        every = list(collectives.all_gather(its))
        first = rank * 6
        if fault == "own first":
            every, first = [every[rank], every[1 - rank]], 0
        labels = torch.arange(6) + (0 if fault == "no offset" else first)
        F.cross_entropy(5 * mine @ torch.cat(every).T, labels).backward()
        optimizer.step()


#: The axes of the programs whose ranks are no replicas.
AXES = {"halves": "tp", "planned": "tp", "stages": "pp", "pipes": "pp"}
