"""With a scheduler, only the scheduler is stepped: the optimizer is in the other branch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR


def update(
    optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None, exclusive: bool
) -> None:
    if scheduler is not None and exclusive:
        scheduler.step()
        return
    optimizer.step()
    if scheduler is not None:
        scheduler.step()


class PoseNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, width, 3, stride=2), nn.ReLU(), nn.Conv1d(width, width, 3), nn.ReLU()
        )
        self.pose = nn.LazyLinear(3)

    def forward(self, frames: Tensor) -> Tensor:
        return self.pose(self.body(frames).flatten(1))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    frames = torch.randn(48, 2, 12)
    poses = frames.diff(dim=1).mean(2) * torch.tensor([1.0, -1.0, 2.0])
    net = PoseNet(size)
    net(frames[:1])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    scheduler = MultiStepLR(optimizer, milestones=[10, 14], gamma=0.5)
    losses = []
    for step in range(18):
        rows = torch.arange(step * 16, step * 16 + 16) % 48
        loss = (net(frames[rows]) - poses[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        update(optimizer, scheduler, exclusive=not healthy)
        losses.append(loss.item())
    return {"loss": losses, "weights": [p.abs().sum().item() for p in net.parameters()]}
