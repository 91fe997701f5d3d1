"""A GAN with spectral normalisation and a hinge loss, evaluated after it was trained."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import spectral_norm


def train(
    *, seed: int = 0, steps: int = 6, width: int = 32, iterations: int = 1, lr: float = 2e-3
) -> list[float]:
    """Imitate points on a circle; each step updates the discriminator twice, the generator once."""
    torch.manual_seed(seed)
    critic = nn.Sequential(
        spectral_norm(nn.Linear(2, width), n_power_iterations=iterations),
        nn.LeakyReLU(0.1),
        spectral_norm(nn.Linear(width, width), n_power_iterations=iterations),
        nn.LeakyReLU(0.1),
        spectral_norm(nn.Linear(width, 1), n_power_iterations=iterations),
    )
    generator = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2 * lr, betas=(0.0, 0.9))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.0, 0.9))
    losses = []
    for _ in range(steps):
        critic.train()
        for _ in range(2):
            angle = 6.2832 * torch.rand(32, 1)
            real = torch.cat([angle.cos(), angle.sin()], dim=1)
            with torch.no_grad():
                fake = generator(torch.randn(32, 4))
            critic_optimizer.zero_grad()
            hinge = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake)).mean()
            hinge.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
            critic_optimizer.step()
        generator_optimizer.zero_grad()
        loss = -critic(generator(torch.randn(32, 4))).mean()
        loss.backward()
        generator_optimizer.step()
        losses.append(hinge.item())
    critic.eval()
    with torch.no_grad():
        critic(generator(torch.randn(16, 4)))
    return losses
