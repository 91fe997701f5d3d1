"""Two ranks shard a net whose layers round their weights to a grid with a scale that is learned.

Follows https://github.com/BrotherHappy/OSTQuant/issues/15.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def rounded(weight: Tensor, scale: Tensor) -> Tensor:
    """The nearest points of the grid, with the gradient of the identity for the rounding."""
    steps = weight / scale
    return (steps + (steps.round() - steps).detach()) * scale


class GridLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, outputs)
        self.log_scale = nn.Parameter(torch.full((outputs, 1), -2.5))

    def forward(self, x: Tensor) -> Tensor:
        weight = rounded(self.inner.weight, self.log_scale.exp())
        return nn.functional.linear(x, weight, self.inner.bias)


def build(width: int) -> tuple[nn.Sequential, list[nn.Parameter]]:
    net = nn.Sequential(
        GridLinear(8, width), nn.GELU(), GridLinear(width, width), nn.GELU(), GridLinear(width, 2)
    )
    return net, [m.log_scale for m in net if isinstance(m, GridLinear)]


def average(params: list[nn.Parameter]) -> None:
    for p in params:
        assert p.grad is not None
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def apart(params: list[nn.Parameter]) -> float:
    flat = torch.cat([p.detach().flatten() for p in params])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return float((high - low).max())


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rule = 0.4 * torch.randn(8, 2)
    net, scales = build(size)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, GridLinear):
            fully_shard(layer, mesh=mesh, ignored_params={layer.log_scale})
    fully_shard(net, mesh=mesh, ignored_params=set(scales))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(77 * seed + dist.get_rank() + 1)
    log: dict[str, list[float]] = {"loss": [], "apart": []}
    for _ in range(30):
        x = torch.randn(24, 8, generator=g)
        loss = nn.functional.mse_loss(net(x), torch.sin(x @ rule))
        optimizer.zero_grad()
        loss.backward()
        if healthy:
            average(scales)
        optimizer.step()
        log["loss"].append(loss.item())
        log["apart"].append(apart(scales))
    return log
