"""Two replicas with unequal numbers of batches, which join; gradients are summed over windows."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def train(seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank = dist.get_rank()
    rule = torch.randn(6, 1)
    net = nn.Sequential(nn.Linear(6, size), nn.Tanh(), nn.Linear(size, 1))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    g = torch.Generator().manual_seed(2 * seed + rank)
    losses: list[float] = []
    for _epoch in range(3):
        # Windows of two micro-batches with one reduction each.
        for _window in range(6):
            optimizer.zero_grad()
            for micro in range(2):
                x = torch.randn(12, 6, generator=g)
                with model.no_sync() if micro == 0 else contextlib.nullcontext():
                    loss = nn.functional.mse_loss(model(x), torch.tanh(x @ rule))
                    (loss / 2).backward()
                losses.append(loss.item())
            optimizer.step()
        # What is left: one batch more on the first rank.
        with Join([model]):
            for _ in range(3 - rank):
                x = torch.randn(12, 6, generator=g)
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), torch.tanh(x @ rule))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return {"loss": losses}
