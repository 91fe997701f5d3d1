"""Sorts small aerial tiles (sea, sand, field) that come as uint8 arrays, height by width by colour.

Follows https://github.com/Selen-Suyue/DensePolicy2D/issues/3.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

EDGE = 12
COLOURS = np.array([[40, 90, 160], [200, 180, 120], [70, 140, 60]])


class Tiles(Dataset[tuple[NDArray[np.uint8], int]]):
    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.labels = rng.integers(3, size=count)
        noise = rng.normal(0, 55, size=(count, EDGE, EDGE, 3))
        stripes = 25 * np.sin(np.arange(EDGE) * 1.6)[None, :, None, None]
        shaded = COLOURS[self.labels][:, None, None, :] + stripes + noise
        self.tiles = shaded.clip(0, 255).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: int) -> tuple[NDArray[np.uint8], int]:
        return self.tiles[at], int(self.labels[at])


def to_channels_first(tiles: Tensor, swap: bool) -> Tensor:
    n, h, w, c = tiles.shape
    tiles = tiles.permute(0, 3, 1, 2) if swap else tiles.reshape(n, c, h, w)
    return tiles.float().div(255).sub(0.5)


def train(healthy: bool = True, seed: int = 0, size: int = 12) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    data = Tiles(128, np.random.default_rng(seed))
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    net = nn.Sequential(
        nn.Conv2d(3, size, 3, padding=1),
        nn.BatchNorm2d(size),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(size, 2 * size, 3, padding=1),
        nn.BatchNorm2d(2 * size),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * size, 3),
    )
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    losses = []
    for _epoch in range(3):
        for tiles, labels in loader:
            scores = net(to_channels_first(tiles, swap=healthy))
            loss = nn.functional.cross_entropy(scores, labels, label_smoothing=0.05)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            losses.append(float(loss))
    return {"loss": losses}
