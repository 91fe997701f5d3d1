"""Two views of each leaf are drawn together, and views of other leaves apart.

Follows https://github.com/Guanzhou-Ke/conan/issues/3.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EDGE = 8


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.project = nn.Linear(4 * width, width)

    def forward(self, leaf: Tensor) -> Tensor:
        projected: Tensor = self.project(self.picture(leaf))
        return projected


class PairLoss(nn.Module):
    """Cross-entropy of which of the other half's projections belongs to which."""

    def __init__(self, warmth: float) -> None:
        super().__init__()
        self.warmth = warmth

    def forward(self, projected: Tensor) -> Tensor:
        half = len(projected) // 2
        one = F.normalize(projected[:half], dim=1)
        other = F.normalize(projected[half:], dim=1)
        own = torch.eye(half, dtype=torch.bool)
        within_one = (one @ one.t() / self.warmth).masked_fill(own, float("-inf"))
        within_other = (other @ other.t() / self.warmth).masked_fill(own, float("-inf"))
        across = one @ other.t() / self.warmth
        labels = torch.arange(half)
        there = F.cross_entropy(torch.cat([across, within_one], 1), labels)
        back = F.cross_entropy(torch.cat([across.t(), within_other], 1), labels)
        return (there + back) / 2


def look(leaves: Tensor, source: torch.Generator) -> Tensor:
    """A view: a little shifted, brighter or darker, and with noise."""
    shift = int(torch.randint(-1, 2, (1,), generator=source))
    bright = 0.7 + 0.6 * torch.rand(len(leaves), 1, 1, 1, generator=source)
    noise = 0.1 * torch.randn(leaves.shape, generator=source)
    return leaves.roll(shift, dims=3) * bright + noise


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    leaves = F.avg_pool2d(torch.rand(64, 1, EDGE + 2, EDGE + 2), 3, stride=1) * 3
    encoder, pairs = Encoder(size), PairLoss(warmth=0.3)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=0.004)
    loader = DataLoader(TensorDataset(leaves), batch_size=16, shuffle=True, drop_last=True)
    source = torch.Generator().manual_seed(seed)
    curve = []
    for _ in range(10):
        for (leaf,) in loader:
            one, other = encoder(look(leaf, source)), encoder(look(leaf, source))
            loss = pairs(torch.cat([one, other], dim=0 if healthy else -1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
    return {"loss": curve}
