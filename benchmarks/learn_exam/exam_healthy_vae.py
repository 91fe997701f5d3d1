"""A variational autoencoder whose weight of the KL term is warmed up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class VAE(nn.Module):
    def __init__(self, inputs: int, width: int, latent: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.mean, self.log_var = nn.Linear(width, latent), nn.Linear(width, latent)
        self.widen, self.leave = nn.Linear(latent, width), nn.Linear(width, inputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.enter(x))
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.leave(F.relu(self.widen(z))), mean, log_var


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    vae = VAE(12, size)
    data = (torch.rand(96, 1) < torch.linspace(0.05, 0.95, 12)).float()
    optimizer = torch.optim.Adam(vae.parameters(), lr=1e-2)
    losses = []
    for step in range(30):
        batch = data[torch.randint(0, 96, (32,))]
        rebuilt, mean, log_var = vae(batch)
        error = F.binary_cross_entropy_with_logits(rebuilt, batch, reduction="sum")
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum()
        loss = (error + min(1.0, step / 60) * divergence) / len(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
