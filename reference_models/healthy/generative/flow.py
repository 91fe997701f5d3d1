"""Flow matching of points under bfloat16 autocast: cosine schedule, clipping, resumed training."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.checkpoint import Checkpointer


class Velocity(nn.Module):
    """A network that predicts the velocity of points from their positions and the flow's time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, width), nn.Linear(width, width)
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, points: Tensor, time: Tensor) -> Tensor:
        """Return a velocity [points, 2] for points [points, 2] and times [points, 1]."""
        hidden = F.gelu(self.first(torch.cat([points, time], dim=1)))
        velocity: Tensor = self.last(self.norm(hidden + F.gelu(self.second(hidden))))
        return velocity


def _steps(model: nn.Module, steps: int, lr: float, batch: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps, eta_min=lr / 10)
    losses = []
    for _ in range(steps):
        noise, time = torch.randn(batch, 2), torch.rand(batch, 1)
        side = torch.randint(2, (batch, 1)) * 4.0 - 2.0
        data = torch.cat([side, 0.2 * torch.randn(batch, 1)], dim=1)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            velocity = model((1 - time) * noise + time * data, time)
        loss = F.mse_loss(velocity.float(), data - noise)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def train(
    *, seed: int = 0, steps: int = 8, width: int = 32, lr: float = 1e-2, batch: int = 64
) -> list[float]:
    """Train for half of the steps, save, load into a new model, and train it for the other half.

    Then sample points by integrating the velocities.
    """
    torch.manual_seed(seed)
    model = Velocity(width)
    losses = _steps(model, steps // 2, lr, batch)
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpointer(Path(folder))
        checkpointer.save(model)
        resumed = Velocity(width)
        checkpointer.load(resumed)
    losses += _steps(resumed, steps - steps // 2, lr, batch)
    resumed.eval()
    with torch.no_grad():
        points = torch.randn(8, 2)
        for step in range(4):
            points = points + resumed(points, torch.full((8, 1), step / 4)) / 4
    return losses
