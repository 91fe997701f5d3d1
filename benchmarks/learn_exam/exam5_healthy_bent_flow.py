"""A normalizing flow bends noise into two moons; its scales start from the first batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class ActNorm(nn.Module):
    ready: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log_scale.copy_(-x.std(0).log())
                self.ready.fill_(True)
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum().expand(len(x))


class Coupling(nn.Module):
    def __init__(self, width: int, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 2))
        last = self.net[2]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        s, t = self.net(kept).chunk(2, dim=1)
        s = torch.tanh(s)
        moved = moved * s.exp() + t
        return torch.cat([moved, kept] if self.flip else [kept, moved], 1), s.squeeze(1)


def moons(count: int) -> Tensor:
    angle = math.pi * torch.rand(count)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    return torch.where(torch.rand(count, 1) < 0.5, upper, lower) + 0.05 * torch.randn(count, 2)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    flow = nn.ModuleList()
    for i in range(4):
        flow += [ActNorm(2), Coupling(size, flip=i % 2 == 1)]
    opt = torch.optim.Adamax(flow.parameters(), lr=1e-2)
    losses = []
    for _ in range(50):
        z = moons(96)
        log_det = torch.zeros(len(z))
        for layer in flow:
            z, d = layer(z)
            log_det = log_det + d
        density = -0.5 * z.pow(2).sum(1) - math.log(2 * math.pi) + log_det
        loss = -density.mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
        opt.step()
        losses.append(loss.item())
    return {"loss": losses}
