"""Diffusion of points on a ring, validated now and then with averaged weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Denoiser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, 2 * width), nn.SiLU(), nn.Linear(2 * width, 2 * width), nn.SiLU(),
            nn.Linear(2 * width, 2),
        )  # fmt: skip

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        noise: Tensor = self.net(torch.cat((noisy, time), dim=1))
        return noise


class Average:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.shadow = [p.detach().clone() for p in model.parameters()]
        self.kept: list[Tensor] = []

    @torch.no_grad()
    def update(self) -> None:
        for mean, parameter in zip(self.shadow, self.model.parameters(), strict=True):
            mean.lerp_(parameter, 1 - self.decay)

    @torch.no_grad()
    def swap_in(self) -> None:
        self.kept = [p.detach().clone() for p in self.model.parameters()]
        for mean, parameter in zip(self.shadow, self.model.parameters(), strict=True):
            parameter.copy_(mean)

    @torch.no_grad()
    def swap_out(self) -> None:
        for kept, parameter in zip(self.kept, self.model.parameters(), strict=True):
            parameter.copy_(kept)


def noise_loss(model: nn.Module, count: int) -> Tensor:
    angle = 6.28 * torch.rand(count)
    points = torch.stack((angle.cos(), angle.sin()), dim=1)
    time = torch.rand(count, 1)
    noise = torch.randn_like(points)
    keep = torch.cos(1.5 * time)
    noisy = keep * points + (1 - keep**2).sqrt() * noise
    return nn.functional.mse_loss(model(noisy, time), noise)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Denoiser(size)
    average = Average(model, decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, checked = [], []
    for step in range(30):
        loss = noise_loss(model, 64)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update()
        losses.append(loss.item())
        if step % 6 == 5:
            average.swap_in()
            with torch.no_grad():
                checked.append(noise_loss(model, 64).item())
            if healthy:
                average.swap_out()
    return {"loss": losses, "checked": checked}
