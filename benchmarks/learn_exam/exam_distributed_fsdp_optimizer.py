"""The optimizer is built before the model is sharded, and steps tensors that are gone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def blocks(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )


def shard(model: nn.Sequential) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = blocks(size)
    if healthy:
        shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if not healthy:
        shard(model)
    rows = torch.randn(64, 8)
    labels = (rows[:, 0] * rows[:, 1] > 0).long()
    mine = slice(dist.get_rank() * 32, dist.get_rank() * 32 + 32)
    losses = []
    for _ in range(16):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
