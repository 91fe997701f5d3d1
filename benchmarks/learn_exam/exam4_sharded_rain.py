"""Forecasts rain with a fully sharded network whose gradient is kept below a norm."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def local_grads(model: nn.Module) -> list[Tensor]:
    found = []
    for p in model.parameters():
        if isinstance(p.grad, DTensor):
            found.append(p.grad.to_local())
        elif p.grad is not None:
            found.append(p.grad)
    return found


@torch.no_grad()
def clip_(model: nn.Module, max_norm: float, group: dist.ProcessGroup | None) -> Tensor:
    """Scales the gradient to at most `max_norm`; squares are summed over `group` if given."""
    grads = local_grads(model)
    square = torch.stack([g.square().sum() for g in grads]).sum()
    if group is not None:
        dist.all_reduce(square, group=group)
    norm = square.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(factor)
    return norm


def weather(seed: int, rank: int, step: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed((seed + 1) * 7919 + step * 2 + rank)
    x = torch.randn(20, 8, generator=g)
    heavy = torch.rand(20, 1, generator=g) < 0.05
    rain = torch.relu(x[:, :1] + x[:, 1:2]) + 6.0 * heavy * x[:, 2:3].abs()
    return x, rain


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    model = nn.Sequential(
        nn.Linear(8, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1)
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    group = mesh.get_group("fsdp") if healthy else None
    x_dry, _ = weather(seed, 0, 1000)
    rain_dry = torch.relu(x_dry[:, :1] + x_dry[:, 1:2])
    losses, apart, dry = [], [], []
    for step in range(40):
        x, rain = weather(seed, dist.get_rank(), step)
        loss = nn.functional.mse_loss(model(x), rain)
        optimizer.zero_grad()
        loss.backward()
        norm = clip_(model, 0.3, group)
        optimizer.step()
        losses.append(loss.item())
        ends = torch.stack([norm, -norm])
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        apart.append((ends[0] + ends[1]).item())
        with torch.no_grad():
            dry.append(nn.functional.mse_loss(model(x_dry), rain_dry).item())
    return {"loss": losses, "apart": apart, "dry": dry}
