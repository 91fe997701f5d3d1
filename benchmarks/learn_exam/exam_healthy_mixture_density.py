"""A mixture density network fits a relation with two branches, with L-BFGS."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MixtureDensity(nn.Module):
    def __init__(self, width: int, parts: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, width), nn.Tanh())
        self.weight, self.mean, self.scale = (nn.Linear(width, parts) for _ in range(3))

    def negative_log_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.body(x)
        normal = torch.distributions.Normal(
            self.mean(h), nn.functional.softplus(self.scale(h)) + 0.05
        )
        log = self.weight(h).log_softmax(1) + normal.log_prob(y)
        return -log.logsumexp(1).mean()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.rand(80, 1) * 2 - 1
    y = torch.where(torch.rand(80, 1) < 0.5, x, -x) + 0.05 * torch.randn(80, 1)
    model = MixtureDensity(size)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model.negative_log_likelihood(x, y)
        loss.backward()
        return loss

    for _ in range(10):
        losses.append(float(optimizer.step(closure)))
    return {"loss": losses}
