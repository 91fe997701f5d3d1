"""Tells healthy from cracked ice on small scans, which are jittered as they are read."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Scans = NDArray[np.float32]


class IceScans(Dataset[tuple[Tensor, int]]):
    """Scans that stay in memory, with a random gain and offset each time one is read."""

    def __init__(self, scans: Scans, cracked: NDArray[np.int64], copies: bool, seed: int) -> None:
        self.scans, self.cracked, self.copies = scans, cracked, copies
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        scan = self.scans[index]
        if self.copies:
            scan = scan.copy()
        scan *= np.float32(self.rng.uniform(0.8, 1.2))
        scan += np.float32(self.rng.normal(0, 0.15))
        return torch.from_numpy(scan), int(self.cracked[index])


class IceNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3)
        self.fc = nn.Linear(width * 9, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.max_pool2d(torch.relu(self.conv(x.unsqueeze(1))), 2)
        answer: Tensor = self.fc(h.flatten(1))
        return answer


def train(healthy: bool = True, seed: int = 0, size: int = 8) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    cracked = rng.integers(0, 2, 64)
    scans = rng.normal(0, 0.5, (64, 8, 8)).astype(np.float32)
    scans[cracked == 1] += 1.2 * np.eye(8, dtype=np.float32)
    data = IceScans(scans, cracked, copies=healthy, seed=seed + 1)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    net = IceNet(size)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    losses = []
    for _ in range(10):
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
    return {"loss": losses}
