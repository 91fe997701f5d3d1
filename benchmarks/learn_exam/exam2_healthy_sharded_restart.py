"""A sharded model with recomputed layers, whose state goes into a new model half-way."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.mix(self.norm(x)))


class Regressor(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.layers = nn.ModuleList(Residual(width) for _ in range(2))
        self.leave = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        answers: Tensor = self.leave(x)
        return answers


def build(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Regressor(width)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=2e-2)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model, optimizer = build(size)
    stream = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    losses = []
    for step in range(12):
        if step == 6:
            weights, state = get_state_dict(model, optimizer)
            model, optimizer = build(size)
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        inputs = torch.randn(24, 4, generator=stream)
        answers = torch.stack((inputs[:, 0] - inputs[:, 1], inputs[:, 2] + 1), dim=1)
        loss = nn.functional.mse_loss(model(inputs), answers)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"loss": losses}
