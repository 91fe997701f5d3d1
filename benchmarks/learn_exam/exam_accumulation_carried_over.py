"""The counter restarts each epoch, but gradients of the incomplete window are carried over."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Recipe:
    """A fine-tuning recipe with accumulation over micro-batches."""

    def __init__(self, config: dict[str, Any]) -> None:
        torch.manual_seed(config["seed"])
        width = config["width"]
        self.config = config
        self.model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 6))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches = [torch.randn(8, 6).sort(dim=1, descending=True)[0] for _ in range(7)]
        self.losses: list[float] = []

    def train(self) -> None:
        every = self.config["gradient_accumulation_steps"]
        for _ in range(self.config["epochs"]):
            if self.config["clear_at_epoch"]:
                self.optimizer.zero_grad()
            for index, batch in enumerate(self.batches):
                loss = nn.functional.mse_loss(self.model(batch), batch.flip(1)) / every
                loss.backward()
                self.losses.append(loss.item() * every)
                if (index + 1) % every == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    recipe = Recipe(
        {
            "seed": seed,
            "width": size,
            "epochs": 6,
            "gradient_accumulation_steps": 4,
            "clear_at_epoch": healthy,
        }
    )
    recipe.train()
    return {"loss": recipe.losses}
