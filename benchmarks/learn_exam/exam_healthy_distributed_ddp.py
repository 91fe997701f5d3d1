"""Data parallelism with unequal inputs at the end of the data, on two ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(6, size), nn.ReLU(), nn.Linear(size, 3)), bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    x = torch.randn(90, 6)
    y = x[:, :3].argmax(1)
    mine = list(torch.arange(90).split(10))[dist.get_rank() :: 2]
    losses = []
    for _ in range(4):
        with Join([model]):
            for rows in mine:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return {"loss": losses}
