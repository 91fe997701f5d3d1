"""Two workers train apart for five steps; then an outer optimizer moves the shared weights.

The outer gradient is the mean of how far the workers went from the shared weights, and Nesterov's
momentum acts on it.  Replicas are equal after every fifth step, and differ in between.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

PERIOD = 5


class OuterStep:
    def __init__(self, worker: nn.Module, lr: float = 0.7, momentum: float = 0.5) -> None:
        self.worker = worker
        self.shared = copy.deepcopy(worker)
        self.sgd = torch.optim.SGD(
            self.shared.parameters(), lr=lr, momentum=momentum, nesterov=True
        )

    def __call__(self) -> None:
        for kept, moved in zip(self.shared.parameters(), self.worker.parameters(), strict=True):
            delta = (kept - moved).detach()
            dist.all_reduce(delta)
            kept.grad = delta / dist.get_world_size()
        self.sgd.step()
        self.worker.load_state_dict(self.shared.state_dict())


def train(seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    worker = nn.Sequential(nn.Linear(7, size), nn.GELU(), nn.Linear(size, 4))
    rule = torch.randn(7, 4)
    inner = torch.optim.AdamW(worker.parameters(), lr=1e-2)
    outer = OuterStep(worker)
    region = 0.3 * torch.randn(7) * (1 if dist.get_rank() == 0 else -1)
    g = torch.Generator().manual_seed(31 * seed + 7 + dist.get_rank())
    losses = []
    for step in range(30):
        x = torch.randn(24, 7, generator=g) + region
        loss = nn.functional.cross_entropy(worker(x), (x @ rule).argmax(-1))
        inner.zero_grad()
        loss.backward()
        inner.step()
        if (step + 1) % PERIOD == 0:
            outer()
        losses.append(loss.item())
    return {"loss": losses}
