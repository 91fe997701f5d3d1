"""Guesses the age of trees; the rate restarts every few epochs, and each time a copy is kept."""

import copy

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def trees(n, rng):
    rings = torch.rand(n, 5, generator=rng) * 2
    age = (rings.sum(1) + 0.5 * torch.sin(4 * rings[:, 0])) / 5
    return TensorDataset(rings - 1, age + 0.05 * torch.randn(n, generator=rng))


class Forester:
    def __init__(self, width, cycle):
        self.net = nn.Sequential(nn.Linear(5, width), nn.SiLU(), nn.Linear(width, 1))
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.2, momentum=0.9, nesterov=True)
        self.rate = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.sgd, T_0=cycle)
        self.cycle = cycle
        self.copies = []

    def epoch(self, loader):
        losses = []
        for rings, age in loader:
            self.sgd.zero_grad()
            loss = (self.net(rings).squeeze(1) - age).pow(2).mean()
            loss.backward()
            self.sgd.step()
            losses.append(loss.item())
        self.rate.step()
        if self.rate.T_cur == 0:
            self.copies.append(copy.deepcopy(self.net).eval().requires_grad_(False))
        return losses

    def guess(self, rings):
        with torch.no_grad():
            return torch.stack([net(rings).squeeze(1) for net in self.copies]).mean(0)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed + 6)
    shuffle = torch.Generator().manual_seed(seed)
    loader = DataLoader(trees(96, rng), batch_size=24, shuffle=True, generator=shuffle)
    rings, age = trees(64, rng).tensors
    forester = Forester(size, cycle=3)
    history = {"loss": [], "together": []}
    for _ in range(9):
        history["loss"] += forester.epoch(loader)
        if forester.copies:
            history["together"].append((forester.guess(rings) - age).pow(2).mean().item())
    return history
