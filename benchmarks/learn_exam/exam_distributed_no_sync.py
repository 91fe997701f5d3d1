"""The micro-batch that synchronizes is the first of a window, and the step follows the last."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    rank = dist.get_rank()
    accum_grad = 3
    model = DDP(nn.Sequential(nn.Linear(13, size), nn.ReLU(), nn.Linear(size, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    speech = torch.randn(72, 13)
    phones = speech[:, :4].argmax(1)
    mine = torch.arange(rank, 72, 2).split(6)
    losses, checks = [], []
    batch_idx = 0
    for _ in range(4):
        for rows in mine:
            last = (batch_idx + 1) % accum_grad == 0
            synchronize = last if healthy else batch_idx % accum_grad == 0
            with nullcontext() if synchronize else model.no_sync():
                loss = nn.functional.cross_entropy(model(speech[rows]), phones[rows])
                (loss / accum_grad).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                total = torch.stack([p.detach().sum() for p in model.parameters()])
                least, most = total.clone(), total.clone()
                dist.all_reduce(least, dist.ReduceOp.MIN)
                dist.all_reduce(most, dist.ReduceOp.MAX)
                checks.append((most - least).abs().max().item())
            losses.append(loss.item())
            batch_idx += 1
    return {"loss": losses, "spread": checks}
