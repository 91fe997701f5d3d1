"""Replicas that keep half of the optimizer's state each, over a recurrent forecaster."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Forecaster(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(1, width, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.next = nn.Linear(width, 1)

    def forward(self, series: Tensor) -> Tensor:
        states, _ = self.gru(series[:, :, None])
        forecast: Tensor = self.next(self.norm(states[:, -1])).squeeze(1)
        return forecast


def series(count: int, seed: int) -> TensorDataset:
    draws = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(count, 1, generator=draws)
    speed = 0.3 + 0.5 * torch.rand(count, 1, generator=draws)
    whole = torch.sin(phase + speed * torch.arange(13))
    return TensorDataset(whole[:, :12], whole[:, 12])


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    data = series(96, seed)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(
        Forecaster(size), gradient_as_bucket_view=True, static_graph=True
    )
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2
    )
    losses = []
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for seen, following in loader:
            loss = nn.functional.huber_loss(model(seen), following)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach().clone()
            dist.all_reduce(shown, op=dist.ReduceOp.SUM)
            losses.append(shown.item() / dist.get_world_size())
    return {"loss": losses}
