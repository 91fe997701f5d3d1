"""Learns a start from which one gradient step fits a new sine wave (functional inner loop)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call


def wave(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    height, phase = 0.5 + torch.rand((), generator=g), 3 * torch.rand((), generator=g)
    x = 6 * torch.rand(20, 1, generator=g) - 3
    y = height * torch.sin(x + phase)
    return x[:10], y[:10], x[10:], y[10:]


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh())
    net.append(nn.Linear(size, 1))
    meta = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        meta.zero_grad()
        outer = torch.zeros(())
        for _task in range(4):
            sx, sy, qx, qy = wave(g)
            fast = dict(net.named_parameters())
            inner = nn.functional.mse_loss(functional_call(net, fast, (sx,)), sy)
            grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {k: p - 0.05 * d for (k, p), d in zip(fast.items(), grads, strict=True)}
            outer = outer + nn.functional.mse_loss(functional_call(net, fast, (qx,)), qy)
        (outer / 4).backward()
        meta.step()
        losses.append(outer.item() / 4)
    return {"loss": losses}
