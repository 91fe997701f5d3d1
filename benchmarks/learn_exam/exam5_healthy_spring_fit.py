"""Finds the stiffness and the damping of a spring by LBFGS with line search, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Spring(nn.Module):
    def __init__(self, masses: int) -> None:
        super().__init__()
        self.log_k = nn.Parameter(torch.zeros(masses, dtype=torch.float64))
        self.log_c = nn.Parameter(torch.full((masses,), -2.0, dtype=torch.float64))

    def forward(self, x: Tensor, v: Tensor, steps: int, dt: float = 0.1) -> Tensor:
        path = []
        for _ in range(steps):
            v = v - dt * (self.log_k.exp() * x + self.log_c.exp() * v)
            x = x + dt * v
            path.append(x)
        return torch.stack(path)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    g = torch.Generator().manual_seed(seed)
    truth, guess = Spring(size), Spring(size)
    with torch.no_grad():
        truth.log_k.copy_(0.5 * torch.randn(size, generator=g))
        truth.log_c.copy_(-1 + 0.3 * torch.randn(size, generator=g))
        x, v = torch.ones(size).double(), torch.zeros(size).double()
        measured = truth(x, v, 25) + 0.001 * torch.randn(25, size, generator=g)
    lbfgs = torch.optim.LBFGS(guess.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    history: list[float] = []

    def closure() -> Tensor:
        lbfgs.zero_grad()
        misfit = (guess(x, v, 25) - measured).pow(2).mean()
        misfit.backward()
        return misfit

    for _ in range(12):
        history.append(float(lbfgs.step(closure)))
    return {"loss": history}
