"""A GAN on points with one gradient scaler for both optimizers, under float16 autocast."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def train(
    *, seed: int = 0, steps: int = 6, width: int = 16, latent: int = 4, lr: float = 2e-3
) -> list[float]:
    """Imitate points on a circle.

    In each step the optimizer of the discriminator updates first, then that of the generator, and
    then the scaler updates its scale.
    """
    torch.manual_seed(seed)
    generator = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, 2))
    critic = nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))
    makes = torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.5, 0.99))
    judges = torch.optim.Adam(critic.parameters(), lr=2 * lr, betas=(0.5, 0.99))
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=3)
    losses = []
    for _ in range(steps):
        angle = 6.3 * torch.rand(20)
        real = torch.stack([angle.cos(), angle.sin()], dim=1)
        with torch.autocast("cpu", dtype=torch.float16):
            made = generator(torch.randn(20, latent))
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
        judges.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(judges)
        with torch.autocast("cpu", dtype=torch.float16):
            fooled = F.softplus(-critic(made)).mean()
        makes.zero_grad()
        scaler.scale(fooled).backward()  # type: ignore[no-untyped-call]
        scaler.step(makes)
        scaler.update()
        losses.append(float((loss + fooled).detach()))
    return losses
