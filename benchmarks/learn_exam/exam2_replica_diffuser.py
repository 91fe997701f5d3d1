"""Two replicas of a denoiser whose own method computes the training losses."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Diffuser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, width), nn.SiLU(), nn.Linear(width, 4))

    def forward(self, clean: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        noisy = (1 - time) * clean + time * noise
        guess = self.net(torch.cat((noisy, time), dim=1))
        return nn.functional.mse_loss(guess, noise - clean)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    replica = DistributedDataParallel(Diffuser(size))
    stream = torch.Generator().manual_seed(10 * seed + dist.get_rank() + 1)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=2e-2)
    losses = []
    for _ in range(20):
        sign = torch.randint(0, 2, (24, 1), generator=stream) * 2.0 - 1
        clean = sign * torch.ones(4) + 0.1 * torch.randn(24, 4, generator=stream)
        noise = torch.randn(24, 4, generator=stream)
        time = torch.rand(24, 1, generator=stream)
        compute = replica if healthy else replica.module
        loss = compute(clean, noise, time)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weight = next(replica.parameters()).detach()
    largest, smallest = weight.clone(), weight.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return {"loss": losses, "spread": [(largest - smallest).max().item()]}
