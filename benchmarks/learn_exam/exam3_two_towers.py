"""Scores pairs of users and items with two towers; a second job continues the first one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Towers(nn.Module):
    """A tower for each of the named sides, in the order of the configuration."""

    def __init__(self, sides: Sequence[str], width: int) -> None:
        super().__init__()
        self.towers = nn.ModuleDict(
            {
                side: nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 6))
                for side in sides
            }
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        score: Tensor = (self.towers["user"](users) * self.towers["item"](items)).sum(1)
        return score


class Job:
    def __init__(self, sides: Sequence[str], width: int) -> None:
        self.model = Towers(sides, width)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2, betas=(0.9, 0.99))
        self.step_number = 0

    def save(self, file: io.BytesIO) -> None:
        content: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step_number,
        }
        torch.save(content, file)

    def load(self, file: io.BytesIO) -> None:
        file.seek(0)
        content = torch.load(file, weights_only=True)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.step_number = content["step"]

    def run(self, until: int, taste: Tensor, draws: torch.Generator) -> list[float]:
        losses = []
        while self.step_number < until:
            users = torch.randn(48, 8, generator=draws)
            items = torch.randn(48, 8, generator=draws)
            clicked = ((users @ taste) * items).sum(1) > 0
            loss = nn.functional.binary_cross_entropy_with_logits(
                self.model(users, items), clicked.float()
            )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step_number += 1
            losses.append(loss.item())
        return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    taste, draws = torch.randn(8, 8), torch.Generator().manual_seed(seed)
    first = Job(["user", "item"], size)
    losses = first.run(20, taste, draws)
    file = io.BytesIO()
    first.save(file)
    second = Job(["user", "item"] if healthy else ["item", "user"], size)
    second.load(file)
    return {"loss": losses + second.run(40, taste, draws)}
