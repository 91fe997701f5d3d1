"""A variational autoencoder: a loader, two terms of the loss, a schedule of their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from pytest_trainsafe.reference_models.toolkit.devices import Link


class VAE(nn.Module):
    """Linear layers around a latent Gaussian; the decoder is on a second device."""

    def __init__(self, latent: int, hidden: int) -> None:
        super().__init__()
        self.link = Link()
        self.encoder = nn.Sequential(nn.Linear(36, hidden), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 36))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The reconstruction, and the mean and log-variance of the latent Gaussian."""
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.link.copy(self.decoder(self.link.copy(z))), mean, log_variance


def train(
    *, seed: int = 0, steps: int = 8, latent: int = 3, hidden: int = 24, batch: int = 16
) -> list[float]:
    """Train two epochs on pictures of bars; the divergence has more weight in the second."""
    torch.manual_seed(seed)
    count = batch * (steps // 2)
    pictures = torch.zeros(count, 6, 6)
    pictures[torch.arange(count), torch.randint(6, (count,))] = 1.0
    loader = DataLoader(TensorDataset(pictures.flatten(1)), batch_size=batch, shuffle=True)
    model = VAE(latent, hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    model.train()
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            reconstruction, mean, log_variance = model(x)
            likelihood = F.binary_cross_entropy_with_logits(reconstruction, x)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
            loss = likelihood + 0.01 * (epoch + 1) * divergence
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        torch.sigmoid(model.decoder(torch.randn(4, latent)))
    return losses
