"""Tunes a frozen net with low-rank additions, which are merged for the validation and taken out."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad = False
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale, self.merged = alpha / rank, False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out if self.merged else out + self.scale * (x @ self.a.t()) @ self.b.t()

    @torch.no_grad()
    def merge(self, on: bool) -> None:
        if on != self.merged:
            sign = 1.0 if on else -1.0
            self.base.weight += sign * self.scale * self.b @ self.a
            self.merged = on


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU())
    net.append(nn.Linear(size, 3))
    x = torch.randn(192, 8)
    old, new = (x @ torch.randn(8, 3)).argmax(1), (x @ torch.randn(8, 3)).argmax(1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(15):
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), old).backward()
        opt.step()

    for at in (0, 2):
        layer = net[at]
        assert isinstance(layer, nn.Linear)
        net[at] = LowRank(layer, rank=4, alpha=8)
    net[4].requires_grad_(True)
    adapters = [m for m in net.modules() if isinstance(m, LowRank)]
    opt = torch.optim.Adam((p for p in net.parameters() if p.requires_grad), lr=1e-2)
    losses, valid = [], []
    for _epoch in range(6):
        net.train()
        for rows in torch.randperm(160).split(32):
            loss = nn.functional.cross_entropy(net(x[rows]), new[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        net.eval()
        for adapter in adapters:
            adapter.merge(True)
        with torch.no_grad():
            valid.append(nn.functional.cross_entropy(net(x[160:]), new[160:]).item())
        for adapter in adapters:
            adapter.merge(False)
    return {"loss": losses, "valid": valid}
