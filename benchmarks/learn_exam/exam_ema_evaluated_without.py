"""The average is kept with care, and validation uses the network in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Averaged:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.clone() for name, value in model.state_dict().items()}

    def update(self, model: nn.Module) -> None:
        for name, value in model.state_dict().items():
            self.values[name] = self.decay * self.values[name] + (1 - self.decay) * value


def evaluate(model: nn.Module, weights: dict[str, Tensor] | None, images: Tensor) -> float:
    """The error of reconstruction of `model`, with `weights` instead of its own if given."""
    with torch.no_grad():
        if weights is None:
            rebuilt = model(images)
        else:
            rebuilt = torch.func.functional_call(model, weights, (images,))
        return nn.functional.mse_loss(rebuilt, images).item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    autoencoder = nn.Sequential(nn.Linear(16, size), nn.GELU(), nn.Linear(size, 16))
    average = Averaged(autoencoder, decay=0.9)
    optimizer = torch.optim.RMSprop(autoencoder.parameters(), lr=2e-3)
    images = torch.rand(72, 16).round()
    losses, validation = [], []
    for _ in range(6):
        for rows in torch.randperm(48).split(12):
            hidden = images[rows] * (torch.rand(12, 16) > 0.3)
            loss = nn.functional.mse_loss(autoencoder(hidden), images[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(autoencoder)
            losses.append(loss.item())
        chosen = average.values if healthy else None
        validation.append(evaluate(autoencoder, chosen, images[48:]))
    return {"loss": losses, "validation": validation}
