"""Denoising score matching with a model on two devices, trained by the engine of `toolkit`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.toolkit.devices import Link, place
from pytest_trainsafe.reference_models.toolkit.engine import Engine


class Score(nn.Module):
    """Maps noisy points and their noise levels to the score, the gradient of the log-density.

    The lower layers are placed on one device and the upper layers on another; `link` copies
    tensors between the two.
    """

    def __init__(self, width: int, link: Link) -> None:
        super().__init__()
        self.link = link
        self.lower = nn.Sequential(nn.Linear(3, width), nn.Softplus())
        self.upper = nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, 2))
        self.devices = [place(self.lower, 0), place(self.upper, 1)]

    def forward(self, points: Tensor, level: Tensor) -> Tensor:
        """The score [batch, 2] of noisy points [batch, 2] with the noise levels [batch, 1]."""
        hidden = self.lower(torch.cat([points, level.log()], dim=1))
        score: Tensor = self.link.copy(self.upper(self.link.copy(hidden)))
        return score


def train(
    *, seed: int = 0, steps: int = 8, width: int = 32, batch: int = 64, clip: float = 5.0
) -> list[float]:
    """Learn the score of a spiral, then take a few Langevin steps."""
    torch.manual_seed(seed)
    model = Score(width, Link())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-5)
    engine = Engine(model, optimizer, clip=clip)
    losses = []
    for _ in range(steps):
        angle = 6 * torch.rand(batch, 1)
        points = torch.cat([angle.cos(), angle.sin()], dim=1) * angle / 3
        level = torch.full((batch, 1), 0.1) * 10 ** torch.rand(batch, 1)
        noise = torch.randn(batch, 2)
        loss = (model(points + level * noise, level) * level + noise).square().sum(dim=1).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with torch.no_grad():
        points, level = torch.randn(8, 2), torch.full((8, 1), 0.2)
        for _ in range(3):
            points = points + 0.02 * model(points, level) + 0.2 * torch.randn(8, 2)
    return losses
