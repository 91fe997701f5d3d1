"""Only the generator's gradients are cleared, so its loss leaks into the discriminator's step."""

from __future__ import annotations

import torch
from torch import nn


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, outputs))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    generator, critic = mlp(4, size, 2), mlp(2, size, 1)
    make = torch.optim.Adam(generator.parameters(), lr=5e-3, betas=(0.5, 0.99))
    judge = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.5, 0.99))
    bce = nn.functional.binary_cross_entropy_with_logits
    one, zero = torch.ones(32, 1), torch.zeros(32, 1)
    distance, critic_losses = [], []
    for _ in range(60):
        real = torch.randn(32, 2) * 0.2 + torch.tensor([2.0, -1.0])
        fake = generator(torch.randn(32, 4))

        make.zero_grad()
        bce(critic(fake), one).backward()
        make.step()

        (judge if healthy else make).zero_grad()
        loss = bce(critic(real), one) + bce(critic(fake.detach()), zero)
        loss.backward()
        judge.step()

        distance.append((real.mean(0) - fake.mean(0)).norm().item())
        critic_losses.append(loss.item())
    return {"loss": distance, "critic": critic_losses}
