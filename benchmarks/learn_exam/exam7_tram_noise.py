"""Noise of trams in half precision; each of two ranks steps the parameters that it owns.

Follows https://github.com/pytorch/pytorch/pull/76918.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel


class OwnedSteps:
    """Adam on the parameters of this rank's share of the layers, then sent to the other rank."""

    def __init__(self, layers: list[nn.Linear], lr: float) -> None:
        self.owners = {
            parameter: at * dist.get_world_size() // len(layers)
            for at, layer in enumerate(layers)
            for parameter in layer.parameters()
        }
        mine = [each for each, owner in self.owners.items() if owner == dist.get_rank()]
        self.optimizer = torch.optim.Adam(mine, lr=lr)

    @torch.no_grad()
    def share(self) -> None:
        for parameter, owner in self.owners.items():
            dist.broadcast(parameter, src=owner)


def make_batch(law: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    spectrum = 8 * torch.rand(32, 12, generator=source)
    return spectrum, (spectrum @ law / 8).sin()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    layers = [nn.Linear(12, size), nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, 1)]
    first, second, third, last = layers
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third, nn.Tanh(), last)
    law = 0.4 * torch.randn(12)
    replica = DistributedDataParallel(model)
    steps = OwnedSteps(layers, lr=0.004)
    kind = ShardedGradScaler if healthy else torch.amp.GradScaler
    scaler = kind("cpu", init_scale=2.0**17, growth_interval=8)
    source = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    log: dict[str, list[float]] = {"loss": [], "scale": []}
    for _ in range(36):
        spectrum, level = make_batch(law, source)
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            heard = replica(spectrum)
        loss = nn.functional.mse_loss(heard.float().squeeze(1), level)
        scaler.scale(loss).backward()
        scaler.step(steps.optimizer)
        scaler.update()
        steps.share()
        log["loss"].append(loss.item())
        log["scale"].append(scaler.get_scale())
    return log
