"""A forward pass between sharding and the optimizer lets the optimizer take unsharded tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass(frozen=True)
class Settings:
    width: int
    try_out_first: bool
    lr: float = 2e-2


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mix(inputs) * self.gain


def prepare(settings: Settings, sample: Tensor) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Scale(settings.width)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    if settings.try_out_first:
        model(sample)
    return model, torch.optim.Adam(model.parameters(), lr=settings.lr)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    inputs = torch.randn(32, size)
    targets = inputs.roll(1, 1) * 2
    model, optimizer = prepare(Settings(size, try_out_first=not healthy), inputs[:2])
    mine = torch.arange(dist.get_rank(), 32, dist.get_world_size())
    losses = []
    for _ in range(16):
        loss = nn.functional.mse_loss(model(inputs[mine]), targets[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
