"""Programs whose asynchronous calls are recorded, ordered or used in unusual ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 4


class Gathered(nn.Module):
    """Returns the mean of all ranks' inputs, which are still on their way."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The result, to be used after `work.wait()`."""
        result = given.detach().clone()
        self.work = dist.all_reduce(result, dist.ReduceOp.AVG, async_op=True)
        return result


class Model(nn.Module):
    """One layer, before which the inputs are averaged, if `gathers`."""

    def __init__(self, gathers: bool) -> None:
        super().__init__()
        self.gathered = Gathered() if gathers else None
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        if self.gathered is not None:
            given = self.gathered(given)
            assert self.gathered.work is not None
            self.gathered.work.wait()
        found: torch.Tensor = self.layer(given)
        return found


def train(ctx: Any, how: str) -> None:
    """Trains one layer for two steps, data-parallel, as `how` says."""
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Model(how == "recorded in flight")
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            optimizer.zero_grad()
            works: list[Any] = []
            for index in ctx.microbatches(world):
                with ctx.microbatch(index):
                    drawn = torch.Generator().manual_seed(10 * step + index)
                    loss = model(torch.randn(2, WIDTH, generator=drawn)).pow(2).mean()
                    factor = received_from_any(rank, world) if how == "any source" else 1.0
                    loss = loss * factor
                    ctx.loss(loss.detach())
                    loss.backward()
                    for each in model.parameters():
                        works.append(dist.all_reduce(each.grad, async_op=True))
                    if how == "numpy":
                        # Its memory is used through NumPy, which torch does not see.
                        assert model.layer.weight.grad is not None
                        array = model.layer.weight.grad.numpy()
                        array *= 2.0
                    for work in works:
                        work.wait()
            for each in model.parameters():
                assert each.grad is not None
                each.grad /= world
            optimizer.step()


def received_from_any(rank: int, world: int) -> float:
    """A number that depends on which rank sends first, and which waits for no reply."""
    if rank:
        dist.send(torch.tensor([float(rank)]), 0)
        return 1.0
    found = torch.zeros(1)
    factor = 1.0
    for _ in range(world - 1):
        dist.recv(found)
        factor = 0.5 * factor + float(found)
    return factor
