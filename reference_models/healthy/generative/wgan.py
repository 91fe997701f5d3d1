"""A Wasserstein GAN with a gradient penalty: second derivatives, several critic steps, RMSprop."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _penalty(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    scores = critic(between)
    (gradient,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    excess: Tensor = (gradient.norm(dim=1) - 1).square().mean()
    return excess


def train(
    *, seed: int = 0, steps: int = 5, critic_steps: int = 3, weight: float = 10.0, width: int = 24
) -> list[float]:
    """Imitate a mixture of Gaussians; the losses are the critic's."""
    torch.manual_seed(seed)
    critic = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, 1))
    generator = nn.Sequential(nn.Linear(5, width), nn.SiLU(), nn.Linear(width, 3))
    optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
    optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-3)
    centres = 2 * torch.randn(4, 3)
    losses = []
    for _ in range(steps):
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        for _ in range(critic_steps):
            real = centres[torch.randint(4, (32,))] + 0.1 * torch.randn(32, 3)
            fake = generator(torch.randn(32, 5)).detach()
            distance = critic(fake).mean() - critic(real).mean()
            loss = distance + weight * _penalty(critic, real, fake)
            optimizer_c.zero_grad(set_to_none=True)
            loss.backward()
            optimizer_c.step()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        optimizer_g.zero_grad(set_to_none=True)
        (-critic(generator(torch.randn(32, 5))).mean()).backward()
        optimizer_g.step()
        losses.append(loss.item())
    return losses
