"""Two ranks split the hidden layer of a mixer by columns and rows, and read rows from a sampler.

Follows https://github.com/huggingface/accelerate/issues/3092.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, 2 * width, bias=False)
        self.w2 = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)))


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inp = nn.Linear(7, width)
        self.norm = nn.LayerNorm(width)
        self.ff = FeedForward(width)
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        return self.out(h + self.ff(self.norm(h)))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(192, 7)
    y = (x @ torch.randn(7, 3)).argmax(-1)
    model = Mixer(size)
    tp = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    plan = {"ff.w1": ColwiseParallel(), "ff.w2": RowwiseParallel()}
    parallelize_module(model, tp, plan)
    readers, reader = (1, 0) if healthy else (dist.get_world_size(), dist.get_rank())
    data = TensorDataset(x, y)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        data, num_replicas=readers, rank=reader, seed=seed
    )
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
    losses: list[float] = []
    epoch = 0
    while len(losses) < 24:
        sampler.set_epoch(epoch)
        for rows, labels in loader:
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epoch += 1
    return {"loss": losses}
