"""A forecast in two stages on two ranks, which torch's own pipeline schedule runs.

Follows https://github.com/pytorch/torchtitan/issues/596.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

MICRO_BATCHES = 4
MAX_NORM = 0.25


def stages(width: int) -> list[nn.Module]:
    first = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    last = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
    return [first, last]


def total_norm(grads: list[Tensor], over_stages: bool) -> Tensor:
    norm = nn.utils.get_total_norm(grads)
    if over_stages:
        squared = norm**2
        dist.all_reduce(squared)
        norm = squared.sqrt()
    return norm


def train(healthy: bool = True, seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank = dist.get_rank()
    module = stages(size)[rank]
    law = 0.4 * torch.randn(8, 2)
    stage = PipelineStage(module, rank, dist.get_world_size(), torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.8)
    log: dict[str, list[float]] = {"loss": [], "norm": []}
    for _ in range(30):
        x = torch.randn(32, 8)
        target = torch.sin(x @ law)
        optimizer.zero_grad()
        micro: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=micro)
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        norm = total_norm(grads, over_stages=healthy)
        nn.utils.clip_grads_with_norm_(module.parameters(), MAX_NORM, norm)
        optimizer.step()
        shown = torch.stack(micro).mean().detach() if micro else torch.zeros(())
        dist.broadcast(shown, src=1)
        log["loss"].append(shown.item())
        log["norm"].append(norm.item())
    return log
