"""A generator and a discriminator with bounded layers, which is updated twice as often."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


def ring(count: int) -> Tensor:
    angle = 6.28 * torch.rand(count, 1)
    return 2 * torch.cat([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(count, 2) + 1


def generator(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def discriminator(width: int) -> nn.Sequential:
    return nn.Sequential(
        spectral_norm(nn.Linear(2, width)),
        nn.LeakyReLU(0.1),
        spectral_norm(nn.Linear(width, width)),
        nn.LeakyReLU(0.1),
        spectral_norm(nn.Linear(width, 1)),
    )


def trainable(parameters: Iterable[nn.Parameter], allowed: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(allowed)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    maker, judge = generator(size), discriminator(size)
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=5e-3, betas=(0.0, 0.9))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-2, betas=(0.0, 0.9))
    distances, judged = [], []
    for _ in range(36):
        trainable(judge.parameters(), True)
        for _ in range(2):
            with torch.no_grad():
                fake = maker(torch.randn(48, 4))
            loss = (1 - judge(ring(48))).relu().mean() + (1 + judge(fake)).relu().mean()
            judge_optimizer.zero_grad()
            loss.backward()
            judge_optimizer.step()
        judged.append(loss.item())
        trainable(judge.parameters(), False)
        fake = maker(torch.randn(48, 4))
        loss = -judge(fake).mean()
        maker_optimizer.zero_grad()
        loss.backward()
        maker_optimizer.step()
        distances.append((fake.detach().mean(0) - 1).norm().item())
    return {"loss": distances, "judged": judged}
