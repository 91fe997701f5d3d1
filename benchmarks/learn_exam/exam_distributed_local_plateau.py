"""Each rank reduces its rate on its own loss, so that rates and weights differ."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau


class Reducer:
    """An optimizer that averages gradients over ranks before it steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        self.optimizer.step()


def average_all(loss: Tensor) -> float:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, size), nn.ReLU(), nn.Linear(size, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reducer = Reducer(optimizer)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.7, patience=0, cooldown=1)
    generator = torch.Generator().manual_seed(11 * seed + dist.get_rank())
    losses, spreads = [], []
    for _ in range(24):
        inputs = torch.randn(12, 6, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :3].sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        reducer.step()
        average = average_all(loss)
        scheduler.step(average if healthy else loss.item())
        losses.append(average)
        rate = torch.tensor(float(optimizer.param_groups[0]["lr"]))
        other = rate.clone()
        dist.broadcast(other, 0)
        distance = (rate - other).abs()
        dist.all_reduce(distance, dist.ReduceOp.MAX)
        spreads.append(distance.item())
    return {"loss": losses, "spread": spreads}
