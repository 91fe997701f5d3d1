"""A tiny U-Net learns to predict noise, with an average of its weights for sampling."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class TinyUNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 1))
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.leave = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        when = self.time(torch.stack([t.sin(), t.cos()], 1))[:, :, None, None]
        high = torch.nn.functional.silu(self.enter(x) + when)
        low = self.down(high)
        return self.leave(torch.cat([self.up(low + self.middle(low)), high], 1))


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    steps = 20
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, steps), 0)
    model = TinyUNet(size)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    images = torch.ones(32, 1, 8, 8)
    images[:, :, 2:6, 2:6] = -1
    losses = []
    for _ in range(24):
        t = torch.randint(0, steps, (16,))
        noise = torch.randn(16, 1, 8, 8)
        share = kept[t].view(-1, 1, 1, 1)
        noisy = share.sqrt() * images[:16] + (1 - share).sqrt() * noise
        loss = nn.functional.mse_loss(model(noisy, t / steps), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
        losses.append(loss.item())
    return {"loss": losses}
