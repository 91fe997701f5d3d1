"""A network that solves y'' = -y: Adam first, and L-BFGS with a line search afterwards.

The residual has second derivatives in the input; the weights of the terms are constant.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sine(nn.Module):
    """The activation sin(w x)."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = w

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w * x)


def gradients(y: Tensor, x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    return found


def residual(net: nn.Module, t: Tensor) -> Tensor:
    t = t.requires_grad_(True)
    y = net(t)
    dy = gradients(y, t)
    found: Tensor = gradients(dy, t) + y
    return found


def train(
    *,
    seed: int = 0,
    steps: int = 10,
    hidden: int = 16,
    polish: int = 3,
    w: float = 1.0,
    line_search: bool = True,
) -> list[float]:
    """Train `steps` steps with Adam and `polish` steps with L-BFGS; y(0) = 0, y'(0) = 1."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, hidden), Sine(w), nn.Linear(hidden, hidden), nn.Tanh())
    net.append(nn.Linear(hidden, 1))
    fixed = torch.linspace(0, 3, 40).unsqueeze(1)

    def objective(t: Tensor) -> Tensor:
        physics = residual(net, t).pow(2).mean()
        t0 = torch.zeros(1, 1, requires_grad=True)
        y0 = net(t0)
        boundary = y0.pow(2).sum() + (gradients(y0, t0) - 1).pow(2).sum()
        total: Tensor = physics + 5.0 * boundary
        return total

    adam = torch.optim.Adam(net.parameters(), lr=5e-3)
    losses = []
    for _ in range(steps):
        adam.zero_grad()
        loss = objective(3 * torch.rand(40, 1))
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(loss.item())

    lbfgs = torch.optim.LBFGS(
        net.parameters(),
        lr=1.0 if line_search else 0.1,
        max_iter=8,
        line_search_fn="strong_wolfe" if line_search else None,
    )

    def closure() -> float:
        lbfgs.zero_grad()
        loss = objective(fixed)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    for _ in range(polish):
        value = lbfgs.step(closure)  # type: ignore[no-untyped-call]
        losses.append(float(value))
    return losses
