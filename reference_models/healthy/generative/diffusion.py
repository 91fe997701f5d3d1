"""Denoising diffusion of small pictures: AdamW, an average of the weights, ancestral sampling."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Denoiser(nn.Module):
    """Convolutions with an embedding of the diffusion time."""

    def __init__(self, channels: int, times: int) -> None:
        super().__init__()
        self.time = nn.Embedding(times, channels)
        self.enter = nn.Conv2d(1, channels, 3, padding=1)
        self.middle = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.leave = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        """The predicted noise in a picture."""
        hidden = F.silu(self.enter(noisy) + self.time(time)[:, :, None, None])
        noise: Tensor = self.leave(F.silu(self.norm(self.middle(hidden))))
        return noise


def train(
    *, seed: int = 0, steps: int = 8, channels: int = 12, times: int = 8, decay: float = 0.9
) -> list[float]:
    """Learn to denoise brightness gradients, then sample with the averaged weights."""
    torch.manual_seed(seed)
    alphas = (1 - torch.linspace(1e-2, 0.3, times)).cumprod(dim=0)
    model = Denoiser(channels, times)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(steps):
        slope = torch.linspace(-1, 1, 8).expand(16, 1, 8, 8) * (
            torch.randint(2, (16, 1, 1, 1)) * 2 - 1
        )
        time, noise = torch.randint(times, (16,)), torch.randn(16, 1, 8, 8)
        signal = alphas[time].view(-1, 1, 1, 1)
        predicted = model(signal.sqrt() * slope + (1 - signal).sqrt() * noise, time)
        loss = F.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for mean, current in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(current, 1 - decay)
        losses.append(loss.item())
    average.eval()
    with torch.no_grad():
        picture = torch.randn(2, 1, 8, 8)
        for step in reversed(range(times)):
            noise = average(picture, torch.full((2,), step))
            picture = (picture - (1 - alphas[step]).sqrt() * noise) / alphas[step].sqrt()
            if step:
                picture = alphas[step - 1].sqrt() * picture
                picture = picture + (1 - alphas[step - 1]).sqrt() * torch.randn_like(picture)
    return losses
