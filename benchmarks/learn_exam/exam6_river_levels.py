"""Two replicas learn levels of rivers; each reads its share of a shuffled list of gauges.

Follows https://github.com/karpathy/llm.c/issues/792.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ShardedLoader:
    """Batches of this rank's share of the gauges, in a new order for each epoch."""

    def __init__(self, x: Tensor, y: Tensor, batch: int, seed: int) -> None:
        self.x, self.y, self.batch = x, y, batch
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.rng = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.rng.permutation(len(self.x))
        mine = torch.from_numpy(order[self.rank :: self.world])
        for rows in mine.split(self.batch):
            yield self.x[rows], self.y[rows]


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(128, 10)
    y = torch.tanh(x @ torch.randn(10)) + 0.05 * torch.randn(128)
    model = DDP(nn.Sequential(nn.Linear(10, size), nn.ReLU(), nn.Linear(size, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shuffle_seed = 42 + seed
    loader = ShardedLoader(x, y, 16, shuffle_seed if healthy else shuffle_seed + dist.get_rank())
    losses = []
    for _epoch in range(6):
        for gauges, level in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(gauges).squeeze(1), level)
            loss.backward()
            opt.step()
            shown = loss.detach() / dist.get_world_size()
            dist.all_reduce(shown)
            losses.append(shown.item())
    return {"loss": losses}
