"""Gradients are cleared before each micro-batch, so only the last of a window counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Args:
    micro_batches: int = 3
    clear_each: bool = False
    lr: float = 3e-2


class VelocityField(nn.Module):
    """The field of a flow from noise to data, conditioned on time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Linear(1, width)
        self.enter, self.leave = nn.Linear(2, width), nn.Linear(width, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.leave(torch.relu(self.enter(x) + self.time(t)))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    args = Args(clear_each=not healthy)
    torch.manual_seed(seed)
    field = VelocityField(size)
    optimizer = torch.optim.SGD(field.parameters(), lr=args.lr, momentum=0.9)
    center = torch.tensor([2.0, 3.0])
    losses = []
    for _ in range(16):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(args.micro_batches):
            if args.clear_each:
                optimizer.zero_grad(set_to_none=True)
            noise, t = torch.randn(12, 2), torch.rand(12, 1)
            data = center + 0.3 * torch.randn(12, 2)
            loss = (field((1 - t) * noise + t * data, t) - (data - noise)).square().mean()
            (loss / args.micro_batches).backward()
            losses.append(loss.item())
        optimizer.step()
    return {"loss": losses}
