"""The prepared scheduler steps once for each process, over a length that already counts them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LinearLR, LRScheduler


class PreparedScheduler:
    """A scheduler whose `step` counts for the batches of all processes."""

    def __init__(self, scheduler: LRScheduler, steps: int) -> None:
        self.scheduler, self.steps = scheduler, steps

    def step(self) -> None:
        for _ in range(self.steps):
            self.scheduler.step()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    world, rank = dist.get_world_size(), dist.get_rank()
    tokens = torch.randint(0, 30, (96, 5))
    labels = (tokens.float().mean(1) > 14).long()
    mine = torch.arange(rank, 96, world)
    batches = mine.split(6)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(30, size), nn.Flatten(), nn.Linear(5 * size, 2))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    decay = LinearLR(optimizer, 1.0, 0.0, total_iters=2 * len(batches))
    scheduler = PreparedScheduler(decay, steps=1 if healthy else world)
    losses, rates = [], []
    for _ in range(2):
        for rows in batches:
            loss = nn.functional.cross_entropy(model(tokens[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            rates.append(float(decay.get_last_lr()[0]))
    return {"loss": losses, "rate": rates}
