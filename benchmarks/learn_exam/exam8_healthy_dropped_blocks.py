"""Shells in small pictures, with blocks that are left out at random, later ones more often."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SHELLS = 4


class Block(nn.Module):
    def __init__(self, width: int, stays: float) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)
        self.stays = stays

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            if torch.rand(()).item() >= self.stays:
                return x
            return x + F.relu(self.conv(self.norm(x)))
        return x + self.stays * F.relu(self.conv(self.norm(x)))


class ShellNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(width, 1 - 0.5 * at / depth) for at in range(depth)))
        self.head = nn.Linear(width, SHELLS)

    def forward(self, picture: Tensor) -> Tensor:
        x = self.blocks(self.enter(picture))
        scores: Tensor = self.head(x.amax((2, 3)))
        return scores


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    shell = torch.randint(SHELLS, (128,))
    picture = torch.randn(SHELLS, 1, 6, 6)[shell] + 0.5 * torch.randn(128, 1, 6, 6)
    data = TensorDataset(picture, shell)
    net = ShellNet(size, depth=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    log: dict[str, list[float]] = {"loss": [], "right": []}
    for _ in range(5):
        net.train()
        for seen, kind in DataLoader(data, batch_size=16, shuffle=True):
            loss = F.cross_entropy(net(seen), kind)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            log["loss"].append(loss.item())
        net.eval()
        with torch.no_grad():
            log["right"].append((net(picture).argmax(1) == shell).float().mean().item())
    return log
