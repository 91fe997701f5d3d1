"""Soils that change from season to season; units that have fallen silent are drawn anew."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TRAITS, SOILS = 8, 4


class SoilNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(TRAITS, width), nn.Linear(width, SOILS)
        self.awake = torch.zeros(width)

    def forward(self, traits: Tensor) -> Tensor:
        x = self.inner(traits).relu()
        self.awake = 0.9 * self.awake + 0.1 * (x.detach() > 0).float().mean(0)
        scores: Tensor = self.outer(x)
        return scores

    @torch.no_grad()
    def rouse(self, optimizer: torch.optim.Optimizer) -> int:
        """Draws anew the units that are awake least; the network computes what it did, almost."""
        tired = self.awake < self.awake.mean() / 2
        if not tired.any():
            return 0
        fresh = nn.Linear(TRAITS, len(tired))
        self.inner.weight[tired] = fresh.weight[tired]
        self.inner.bias[tired] = fresh.bias[tired]
        self.outer.weight[:, tired] = 0
        for parameter, place in (
            (self.inner.weight, tired),
            (self.inner.bias, tired),
            (self.outer.weight, (slice(None), tired)),
        ):
            for name in ("exp_avg", "exp_avg_sq"):
                optimizer.state[parameter][name][place] = 0
        self.awake[tired] = self.awake.mean()
        return int(tired.sum())


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = SoilNet(2 * size)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    law = torch.randn(TRAITS, SOILS)
    log: dict[str, list[float]] = {"loss": [], "drawn": []}
    for step in range(54):
        if step % 18 == 0:
            law = law + 0.2 * torch.randn_like(law)
        traits = torch.randn(32, TRAITS) + 0.5
        loss = F.cross_entropy(net(traits), (traits @ law).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log["loss"].append(loss.item())
        log["drawn"].append(net.rouse(optimizer) if step % 9 == 8 else 0)
    return log
