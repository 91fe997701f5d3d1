"""The scheduler is built after the optimizer's state is loaded, and starts its warm-up rate."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR


class PointNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.point = nn.Linear(3, width)
        self.shape = nn.Linear(width, 2)

    def forward(self, clouds: Tensor) -> Tensor:
        return self.shape(torch.relu(self.point(clouds)).amax(1))


def schedule(epoch: int) -> float:
    return float(min(1.0, (epoch + 1) / 4) * 0.9**epoch)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    clouds = torch.randn(32, 10, 3)
    clouds[16:] /= clouds[16:].norm(dim=2, keepdim=True)
    labels = (torch.arange(32) >= 16).long()
    losses: list[float] = []
    rates: list[float] = []

    def epochs(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LambdaLR) -> None:
        for _ in range(4):
            for rows in torch.randperm(32).split(8):
                loss = nn.functional.cross_entropy(model(clouds[rows]), labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rates.append(optimizer.param_groups[0]["lr"])
                losses.append(loss.item())
            scheduler.step()

    model = PointNet(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = LambdaLR(optimizer, schedule)
    epochs(model, optimizer, scheduler)

    again = PointNet(size)
    again.load_state_dict(model.state_dict())
    resumed = torch.optim.SGD(again.parameters(), lr=0.2, momentum=0.9)
    if not healthy:
        resumed.load_state_dict(optimizer.state_dict())
    new_scheduler = LambdaLR(resumed, schedule)
    new_scheduler.load_state_dict(scheduler.state_dict())
    if healthy:
        resumed.load_state_dict(optimizer.state_dict())
    epochs(again, resumed, new_scheduler)
    return {"loss": losses, "rate": rates}
