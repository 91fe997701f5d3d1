"""A Wasserstein GAN with a gradient penalty; the series is the distance of the means."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def penalty(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (grad,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (grad.norm(dim=1) - 1).square().mean()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    generator = nn.Sequential(nn.Linear(3, size), nn.ReLU(), nn.Linear(size, 2))
    critic = nn.Sequential(nn.Linear(2, size), nn.LeakyReLU(0.2), nn.Linear(size, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=5e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.9))
    center = torch.tensor([1.5, 1.5])
    distances = []
    for _ in range(40):
        for _ in range(3):
            real = center + 0.3 * torch.randn(24, 2)
            with torch.no_grad():
                fake = generator(torch.randn(24, 3))
            loss_c = critic(fake).mean() - critic(real).mean() + penalty(critic, real, fake)
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        critic.requires_grad_(False)
        made = generator(torch.randn(24, 3))
        opt_g.zero_grad()
        (-critic(made).mean()).backward()
        opt_g.step()
        critic.requires_grad_(True)
        distances.append((made.mean(0) - center).norm().item())
    return {"loss": distances}
