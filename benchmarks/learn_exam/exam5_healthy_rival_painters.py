"""A generator and a discriminator in turns, as in the tutorial."""

from __future__ import annotations

import torch
from torch import nn


def weights_init(m: nn.Module) -> None:
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight, 0.0, 0.2)
        nn.init.zeros_(m.bias)


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    nz = 4
    netG = nn.Sequential(nn.Linear(nz, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, 6))
    netD = nn.Sequential(nn.Linear(6, size), nn.LeakyReLU(0.2), nn.Linear(size, 1), nn.Sigmoid())
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCELoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=3e-3, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=3e-3, betas=(0.5, 0.999))
    fixed_noise = torch.randn(32, nz)
    shift = torch.linspace(-1, 1, 6)
    D_losses, gaps = [], []
    for _i in range(40):
        # (1) real, then fake
        netD.zero_grad()
        real = shift + 0.3 * torch.randn(32, 6)
        label = torch.full((32,), 0.9)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        noise = torch.randn(32, nz)
        fake = netG(noise)
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        optimizerD.step()
        # (2) generator
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        D_losses.append(errD_real.item() + errD_fake.item())
        with torch.no_grad():
            gaps.append((netG(fixed_noise).mean(0) - shift).abs().mean().item())
    return {"loss": gaps, "critic": D_losses}
