"""A network that solves the equation of a damped oscillator, found by L-BFGS with closures."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def residuals(net: nn.Module, time: Tensor) -> tuple[Tensor, Tensor]:
    place = net(time)
    (speed,) = torch.autograd.grad(place.sum(), time, create_graph=True)
    (push,) = torch.autograd.grad(speed.sum(), time, create_graph=True)
    motion = push + 0.4 * speed + 4 * place
    start = torch.stack((place[0] - 1, speed[0]))
    return motion.square().mean(), start.square().sum()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh(),
                        nn.Linear(size, 1))  # fmt: skip
    time = torch.linspace(0, 2, 24).unsqueeze(1).requires_grad_()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        motion, start = residuals(net, time)
        loss = motion + 5 * start
        loss.backward()
        return loss.item()

    losses = []
    for _ in range(14):
        losses.append(float(optimizer.step(closure)))
    return {"loss": losses}
