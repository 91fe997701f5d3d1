"""Draws the masks of arteries, veins and nerves in small scans, with a branch for each tissue."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TISSUES = ("artery", "vein", "nerve")


def branch(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, channels, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 1, kernel_size=1),
    )


class TissueHeads(nn.Module):
    """Reads the features of the scan once per tissue."""

    def __init__(self, channels: int, separate: bool) -> None:
        super().__init__()
        if separate:
            branches = [branch(channels) for _ in TISSUES]
        else:
            branches = [branch(channels)] * len(TISSUES)
        self.branches = nn.ModuleList(branches)

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([read(features) for read in self.branches], dim=1)


class VesselNet(nn.Module):
    def __init__(self, channels: int, separate: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, kernel_size=3, padding=1)
        self.heads = TissueHeads(channels, separate)

    def forward(self, scan: Tensor) -> Tensor:
        logits: Tensor = self.heads(torch.tanh(self.stem(scan)))
        return logits


def scans(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Bright columns are arteries, dark columns are veins, and bright rows are nerves."""
    masks = torch.zeros(count, len(TISSUES), 12, 12)
    place = torch.randint(12, (3, count), generator=generator)
    every = torch.arange(count)
    masks[every, 0, :, place[0]] = 1.0
    masks[every, 1, :, place[1]] = 1.0
    masks[every, 2, place[2]] = 1.0
    scan = 1.5 * (masks[:, :1] - masks[:, 1:2] + masks[:, 2:])
    return scan + 0.2 * torch.randn(count, 1, 12, 12, generator=generator), masks


def train(healthy: bool = True, seed: int = 0, size: int = 6) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 5)
    scan, masks = scans(64, generator)
    net = VesselNet(size, separate=healthy)
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    history = []
    for _ in range(8):
        for picked in torch.randperm(64, generator=generator).split(16):
            loss = F.binary_cross_entropy_with_logits(net(scan[picked]), masks[picked])
            adam.zero_grad()
            loss.backward()
            adam.step()
            history.append(loss.item())
    return {"loss": history}
