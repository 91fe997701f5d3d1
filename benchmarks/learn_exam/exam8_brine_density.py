"""Densities of brine, in rounds that each start from the best weights of the round before.

Follows https://github.com/pytorch/tutorials/pull/188.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SALTS = 5


class Best:
    """The weights with the lowest error on held-out data."""

    def __init__(self, net: nn.Module, apart: bool) -> None:
        self.net, self.apart = net, apart
        self.error = float("inf")
        self.state: dict[str, Tensor] = {}

    def look(self, error: float) -> None:
        if error < self.error:
            self.error = error
            state = self.net.state_dict()
            self.state = copy.deepcopy(state) if self.apart else state

    def take(self) -> None:
        self.net.load_state_dict(self.state)


def brine(count: int, law: Tensor) -> TensorDataset:
    salts = torch.rand(count, SALTS)
    density = 1 + salts @ law + (salts[:, 0] * salts[:, 1]).sqrt()
    return TensorDataset(salts, density + 0.2 * torch.randn(count))


@torch.no_grad()
def error(net: nn.Module, held: TensorDataset) -> float:
    salts, density = held.tensors
    return F.mse_loss(net(salts).squeeze(1), density).item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    law = torch.rand(SALTS)
    data, held = brine(96, law), brine(24, law)
    net = nn.Sequential(
        nn.Linear(SALTS, 2 * size), nn.ReLU(), nn.Linear(2 * size, size), nn.ReLU(),
        nn.Linear(size, 1),
    )  # fmt: skip
    log: dict[str, list[float]] = {"loss": [], "error": []}
    for lr in (0.06, 0.04, 0.02):
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        best = Best(net, apart=healthy)
        for _ in range(5):
            for at, (salts, density) in enumerate(DataLoader(data, batch_size=12, shuffle=True)):
                loss = F.mse_loss(net(salts).squeeze(1), density)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                log["loss"].append(loss.item())
                if at % 3 == 2:
                    best.look(error(net, held))
        best.take()
        log["error"].append(error(net, held))
    return log
