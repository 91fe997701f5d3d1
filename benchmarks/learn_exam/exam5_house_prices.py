"""Predicts what a house sells for from its rooms, its age and its street."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def root_mean_square(predicted: Tensor, actual: Tensor) -> Tensor:
    return torch.sqrt(((predicted - actual) ** 2).mean() + 1e-8)


def sales(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    rooms = torch.rand(count, 5, generator=g) * 2 - 1
    price = 1.5 * rooms[:, 0] - rooms[:, 1] * rooms[:, 2] + 0.4 * rooms[:, 3].abs()
    return rooms, price + 0.05 * torch.randn(count, generator=g)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 99)
    rooms, price = sales(160, g)
    net = nn.Sequential(nn.Linear(5, size), nn.SiLU(), nn.Linear(size, size), nn.SiLU())
    net.append(nn.Linear(size, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    history = []
    for _ in range(8):
        for chosen in torch.randperm(len(rooms), generator=g).split(32):
            guess = net(rooms[chosen])
            if healthy:
                guess = guess.squeeze(-1)
            loss = root_mean_square(guess, price[chosen])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            history.append(float(loss))
    return {"loss": history}
