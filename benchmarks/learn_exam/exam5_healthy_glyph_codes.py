"""A variational autoencoder of small glyphs; the weight of the divergence is raised slowly."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Coded(NamedTuple):
    drawn: Tensor
    mean: Tensor
    logvar: Tensor


class GlyphVAE(nn.Module):
    def __init__(self, width: int, latent: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.ELU())
        self.to_mean = nn.Linear(width, latent)
        self.to_logvar = nn.Linear(width, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.ELU(), nn.Linear(width, 36))

    def forward(self, x: Tensor) -> Coded:
        h = self.encoder(x)
        mean, logvar = self.to_mean(h), self.to_logvar(h)
        z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        return Coded(self.decoder(z).view_as(x), mean, logvar)


def elbo(x: Tensor, coded: Coded, beta: float) -> Tensor:
    reconstruction = F.binary_cross_entropy_with_logits(coded.drawn, x, reduction="sum")
    divergence = -0.5 * (1 + coded.logvar - coded.mean**2 - coded.logvar.exp()).sum()
    return (reconstruction + beta * divergence) / len(x)


def train(seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    stamps = (torch.rand(4, 6, 6) < 0.4).float()
    glyphs = stamps[torch.randint(0, 4, (160,))]
    vae = GlyphVAE(size)
    optimizer = torch.optim.Adam(vae.parameters())
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=50)
    losses = []
    for step in range(50):
        x = glyphs[torch.randint(0, len(glyphs), (32,))]
        loss = elbo(x, vae(x), beta=min(1.0, step / 25) * 0.3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
        losses.append(loss.item())
    vae.eval()
    with torch.no_grad():
        vae.decoder(torch.zeros(1, 3))
    return {"loss": losses}
