"""Kinds of plankton, on two ranks that each hold a replica of a model whose layers are sharded.

Follows https://github.com/verl-project/verl/issues/7493.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CHANNELS, KINDS = 9, 5


def build(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(CHANNELS, width),
        nn.Sequential(nn.RMSNorm(width), nn.Linear(width, width), nn.GELU()),
        nn.Sequential(nn.RMSNorm(width), nn.Linear(width, width), nn.GELU()),
        nn.Linear(width, KINDS),
    )


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = build(size)
    centres = 1.5 * torch.randn(KINDS, CHANNELS)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    over = mesh if healthy else mesh["shard"]
    for layer in model:
        if isinstance(layer, nn.Sequential):
            fully_shard(layer, mesh=over)
    fully_shard(model, mesh=over)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
    water = torch.Generator().manual_seed(31 * seed + dist.get_rank())
    seen = []
    for _ in range(35):
        kind = torch.randint(KINDS, (20,), generator=water)
        x = centres[kind] + torch.randn(20, CHANNELS, generator=water)
        loss = nn.functional.cross_entropy(model(x), kind)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return {"loss": seen}
