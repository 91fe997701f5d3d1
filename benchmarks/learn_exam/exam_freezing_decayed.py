"""A wrapper applies weight decay by hand to all parameters, the frozen ones included."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class OptimWrapper:
    """Adam with true weight decay, applied to parameters before the step."""

    def __init__(self, model: nn.Module, lr: float, decay: float, skip_frozen: bool) -> None:
        self.parameters = list(model.parameters())
        self.decay, self.skip_frozen = decay, skip_frozen
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def step(self) -> None:
        rate = self.optimizer.param_groups[0]["lr"]
        for parameter in self.parameters:
            if self.skip_frozen and not parameter.requires_grad:
                continue
            parameter.data.mul_(1 - self.decay * rate)
        self.optimizer.step()


class Detector(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.voxels = nn.Linear(4, width)
        self.boxes = nn.Sequential(nn.ReLU(), nn.Linear(width, 3))

    def forward(self, points: Tensor) -> Tensor:
        return self.boxes(self.voxels(points).amax(1))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Detector(size)
    model.voxels.requires_grad_(False)
    before = model.voxels.weight.clone()
    optimizer = OptimWrapper(model, lr=1e-2, decay=0.1, skip_frozen=healthy)
    points = torch.randn(48, 6, 4)
    boxes = points[..., :3].amax(1)
    losses, moves = [], []
    for _ in range(5):
        for rows in torch.randperm(48).split(12):
            loss = nn.functional.smooth_l1_loss(model(points[rows]), boxes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            moves.append((model.voxels.weight - before).abs().max().item())
    return {"loss": losses, "moved": moves}
