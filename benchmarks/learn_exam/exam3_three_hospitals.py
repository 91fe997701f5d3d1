"""Learns from three hospitals at once, and asks that their gradients agree."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def hospital(number: int, rows: int) -> tuple[Tensor, Tensor]:
    """Measurements whose last column goes with the outcome more or less, by hospital."""
    outcome = torch.rand(rows, 1).round()
    lasting = torch.randn(rows, 4) + (2 * outcome - 1) * 0.7
    agrees = torch.rand(rows, 1) < (0.95, 0.8, 0.6)[number]
    misleading = torch.where(agrees, 2 * outcome - 1, 1 - 2 * outcome)
    return torch.cat([lasting, misleading], 1), outcome


class InvariantLearner:
    def __init__(self, width: int, penalty: float, second_order: bool) -> None:
        self.network = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 1))
        self.penalty = penalty
        self.second_order = second_order
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-2)

    def update(self, minibatches: list[tuple[Tensor, Tensor]]) -> float:
        weights = tuple(self.network.parameters())
        losses, gradients = [], []
        for rows, outcome in minibatches:
            loss = nn.functional.binary_cross_entropy_with_logits(self.network(rows), outcome)
            losses.append(loss)
            gradients.append(self._gradient(loss, weights))
        mean_loss = torch.stack(losses).mean()
        mean_gradient = self._gradient(mean_loss, weights)
        spread = mean_loss.new_zeros(())
        for gradient in gradients:
            for part, mean in zip(gradient, mean_gradient, strict=True):
                spread = spread + (part - mean).square().sum()
        self.optimizer.zero_grad()
        (mean_loss + self.penalty * spread).backward()
        self.optimizer.step()
        return mean_loss.item()

    def _gradient(self, loss: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, weights, retain_graph=True, create_graph=self.second_order)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    learner = InvariantLearner(size, penalty=2.0, second_order=healthy)
    return {"loss": [learner.update([hospital(n, 32) for n in range(3)]) for _ in range(32)]}
