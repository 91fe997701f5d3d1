"""Sharpens blurred signals: first against the sharp ones, then also against a critic."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def conv(entering: int, leaving: int) -> nn.Conv1d:
    return nn.Conv1d(entering, leaving, 5, padding=2)


class Sharpener(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            conv(1, channels), nn.LeakyReLU(0.2), conv(channels, channels), nn.LeakyReLU(0.2),
            conv(channels, 1),
        )  # fmt: skip

    def forward(self, blurred: Tensor) -> Tensor:
        sharp: Tensor = blurred + self.net(blurred)
        return sharp


class Critic(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            conv(1, channels), nn.LeakyReLU(0.2), conv(channels, channels), nn.LeakyReLU(0.2),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 1),
        )  # fmt: skip

    def forward(self, signals: Tensor) -> Tensor:
        score: Tensor = self.net(signals)
        return score


def pairs(batch: int = 16) -> tuple[Tensor, Tensor]:
    sharp = torch.sign(torch.randn(batch, 1, 12)).repeat_interleave(3, dim=2)
    return nn.functional.avg_pool1d(sharp, 7, stride=1, padding=3), sharp


class Stages:
    def __init__(self, channels: int, alternating: bool) -> None:
        self.sharpener, self.critic = Sharpener(channels), Critic(channels)
        self.optimizer_g = torch.optim.Adam(self.sharpener.parameters(), lr=5e-3)
        self.optimizer_d = torch.optim.Adam(self.critic.parameters(), lr=5e-3)
        self.alternating = alternating
        self.losses: list[float] = []

    def warm_up(self, steps: int) -> None:
        for _ in range(steps):
            blurred, sharp = pairs()
            loss = nn.functional.l1_loss(self.sharpener(blurred), sharp)
            self.optimizer_g.zero_grad()
            loss.backward()
            self.optimizer_g.step()
            self.losses.append(loss.item())

    def continue_training(self, steps: int) -> None:
        for _ in range(steps):
            blurred, sharp = pairs()
            self.optimizer_d.zero_grad()
            made = self.sharpener(blurred)
            loss_d = self.critic(made.detach()).mean() - self.critic(sharp).mean()
            loss_d.backward()
            nn.utils.clip_grad_value_(self.critic.parameters(), 0.1)
            if self.alternating:
                self.optimizer_d.step()
            self.optimizer_g.zero_grad()
            content = nn.functional.l1_loss(made, sharp)
            (content - 0.03 * self.critic(made).mean()).backward()
            self.optimizer_g.step()
            self.losses.append(content.item())


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    stages = Stages(size, alternating=healthy)
    stages.warm_up(10)
    stages.continue_training(22)
    return {"loss": stages.losses}
