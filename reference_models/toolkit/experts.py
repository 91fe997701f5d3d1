"""A mixture of experts, one expert on each rank of a group."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


def exchange(slots: Tensor, group: dist.ProcessGroup, patience: float) -> Tensor:
    """Return the all-to-all of `slots`, of shape (ranks, capacity, width).

    Sends one message per slot, as NCCL does.  Every rank must pass the same capacity; if a message
    does not arrive within `patience` seconds, RuntimeError is raised.
    """
    received: Tensor = _Exchange.apply(slots, group, patience)  # type: ignore[no-untyped-call]
    return received


def _swap(slots: Tensor, group: dist.ProcessGroup, patience: float) -> Tensor:
    me = dist.get_rank(group)
    received = torch.zeros_like(slots)
    received[me] = slots[me]
    requests = []
    for other in range(dist.get_world_size(group)):
        if other == me:
            continue
        peer = dist.get_global_rank(group, other)
        for slot in range(slots.shape[1]):
            requests.append(dist.isend(slots[other, slot].contiguous(), peer, group=group))
            requests.append(dist.irecv(received[other, slot], peer, group=group))
    for request in requests:
        assert request is not None
        request.wait(timedelta(seconds=patience))
    return received


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slots: Tensor, group: dist.ProcessGroup, patience: float) -> Tensor:
        ctx.group, ctx.patience = group, patience
        return _swap(slots.detach(), group, patience)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _swap(grads[0].contiguous(), ctx.group, ctx.patience), None, None


class ExpertsLayer(nn.Module):
    """Routes every token to one expert; an expert takes at most `capacity` tokens of each rank.

    The group has as many experts as ranks, and each rank holds one.  With `drop_tokens` the
    capacity is `factor` times the even share of a rank's tokens; otherwise it is as large as the
    expert with the most tokens needs.
    """

    def __init__(
        self,
        width: int,
        group: dist.ProcessGroup,
        factor: float = 1.5,
        drop_tokens: bool = True,
        patience: float = 60.0,
    ) -> None:
        super().__init__()
        self.group, self.factor, self.drop_tokens = group, factor, drop_tokens
        self.patience, self.experts = patience, dist.get_world_size(group)
        self.router = nn.Linear(width, self.experts, bias=False)
        self.expert = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.last_capacity = 0

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `tokens`, of shape (tokens, width), to the same shape.

        Tokens that find no room in their expert are returned unchanged.
        """
        scores = F.softmax(self.router(tokens), dim=-1)
        weights, chosen = scores.max(dim=-1)
        counts = torch.bincount(chosen, minlength=self.experts)
        capacity = self.last_capacity = self.capacity(len(tokens), counts)
        position = (
            F.one_hot(chosen, self.experts).cumsum(dim=0)[torch.arange(len(tokens)), chosen] - 1
        )
        kept = position < capacity
        slots = tokens.new_zeros(self.experts, capacity, tokens.shape[1])
        slots = slots.index_put((chosen[kept], position[kept]), tokens[kept])
        given = exchange(slots, self.group, self.patience)
        computed = self.expert(given.flatten(0, 1)).view_as(given)
        returned = exchange(computed, self.group, self.patience)
        output = tokens.clone()
        output[kept] = tokens[kept] + weights[kept, None] * returned[chosen[kept], position[kept]]
        return output

    def capacity(self, tokens: int, counts: Tensor) -> int:
        """Return how many tokens of a rank an expert takes: the same number on every rank."""
        wanted = self.local_capacity(tokens, counts)
        largest = torch.tensor(wanted)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        return int(largest)

    def local_capacity(self, tokens: int, counts: Tensor) -> int:
        """Return the capacity that the tokens of this rank need."""
        if self.drop_tokens:
            return math.ceil(self.factor * tokens / self.experts)
        return int(counts.max())
