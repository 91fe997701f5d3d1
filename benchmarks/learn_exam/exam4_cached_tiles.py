"""Tells fields from forests on satellite tiles that are read once and kept in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class TileCache(Dataset[Any]):
    """Tiles of three bands, with the transforms of training applied when a tile is asked for."""

    MEAN = torch.tensor([0.45, 0.40, 0.35]).view(3, 1, 1)
    STD = torch.tensor([0.60, 0.55, 0.50]).view(3, 1, 1)

    def __init__(self, tiles: Tensor, covers: Tensor, fresh: bool) -> None:
        self._tiles = list(tiles)
        self._covers = covers
        self._fresh = fresh
        self._chance = torch.Generator().manual_seed(8)

    def __len__(self) -> int:
        return len(self._tiles)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tile = self._tiles[index]
        if self._fresh:
            tile = tile.clone()
        tile.sub_(self.MEAN).div_(self.STD)
        if torch.rand((), generator=self._chance) < 0.5:
            tile = tile.flip(-1)
        return tile, self._covers[index]


def landscape(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    cover = torch.randint(2, (n,), generator=g)
    coarse = nn.functional.interpolate(torch.rand(n, 3, 3, 3, generator=g), scale_factor=3.0)
    fine = torch.rand(n, 3, 9, 9, generator=g)
    forest = cover.view(-1, 1, 1, 1).float()
    return forest * fine + (1 - forest) * coarse, cover


def train(healthy: bool = True, seed: int = 0, size: int = 8) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    tiles, covers = landscape(96, 60 + seed)
    loader = DataLoader(TileCache(tiles, covers, fresh=healthy), batch_size=16, shuffle=True)
    net = nn.Sequential(
        nn.Conv2d(3, size, 3), nn.ReLU(), nn.Conv2d(size, size, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, 2),
    )  # fmt: skip
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    test, answers = landscape(64, 900 + seed)
    test = (test - TileCache.MEAN) / TileCache.STD
    log: dict[str, list[float]] = {"loss": [], "spread": [], "validation": []}
    for _ in range(6):
        for tile, cover in loader:
            loss = nn.functional.cross_entropy(net(tile), cover)
            adam.zero_grad()
            loss.backward()
            adam.step()
            log["loss"].append(loss.item())
            log["spread"].append(tile.std().item())
        with torch.no_grad():
            log["validation"].append(nn.functional.cross_entropy(net(test), answers).item())
    return log
