"""A convolutional GAN: two Adam optimizers, binary cross-entropy, samples after some steps."""

from __future__ import annotations

import torch
from torch import nn


def _generator(latent: int, channels: int) -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(latent, 2 * channels, 4, 1, 0, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * channels, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def _discriminator(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, channels, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(channels, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
    )


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def train(
    *, seed: int = 0, steps: int = 6, latent: int = 12, channels: int = 8, beta: float = 0.5
) -> list[float]:
    """Imitate pictures of crosses; the losses are the discriminator's."""
    torch.manual_seed(seed)
    generator = _generator(latent, channels).apply(_initialise)
    discriminator = _discriminator(channels).apply(_initialise)
    criterion = nn.BCEWithLogitsLoss()
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(beta, 0.999))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(beta, 0.999))
    fixed_noise = torch.randn(4, latent, 1, 1)
    losses = []
    for step in range(steps):
        real = 0.1 * torch.randn(12, 1, 8, 8)
        real[:, :, 3:5] += 0.8
        real[:, :, :, 3:5] += 0.8
        discriminator.zero_grad()
        loss_real = criterion(discriminator(real), torch.ones(12))
        loss_real.backward()
        fake = generator(torch.randn(12, latent, 1, 1))
        loss_fake = criterion(discriminator(fake.detach()), torch.zeros(12))
        loss_fake.backward()
        optimizer_d.step()
        generator.zero_grad()
        loss_g = criterion(discriminator(fake), torch.ones(12))
        loss_g.backward()
        optimizer_g.step()
        losses.append(loss_real.item() + loss_fake.item())
        if step % 3 == 2:
            generator.eval()
            with torch.no_grad():
                generator(fixed_noise)
            generator.train()
    return losses
