"""The loader's generator starts again at each restart, so the same order is read again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Job:
    """A run of some steps that starts from a checkpoint, or from nothing."""

    def __init__(self, width: int, seed: int, checkpoint: dict[str, Any] | None) -> None:
        self.model = nn.GRU(3, width, batch_first=True)
        self.head = nn.Linear(width, 3)
        self.optimizer = torch.optim.AdamW([*self.model.parameters(), *self.head.parameters()])
        self.optimizer.param_groups[0]["lr"] = 1e-2
        self.shuffle = torch.Generator().manual_seed(seed)
        if checkpoint is not None:
            self.model.load_state_dict(checkpoint["model"])
            self.head.load_state_dict(checkpoint["head"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            if "shuffle" in checkpoint:
                self.shuffle.set_state(checkpoint["shuffle"])

    def checkpoint(self, with_generator: bool) -> dict[str, Any]:
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        if with_generator:
            state["shuffle"] = self.shuffle.get_state()
        return state

    def epoch(self, audio: Tensor, losses: list[float], order: list[float]) -> None:
        for rows in torch.randperm(len(audio), generator=self.shuffle).split(8):
            predicted = self.head(self.model(audio[rows, :-1])[0])
            loss = nn.functional.mse_loss(predicted, audio[rows, 1:])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            order.append(float(rows[0]))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    audio = torch.sin(torch.arange(8).view(1, 8, 1) + torch.rand(40, 1, 3) * 6)
    losses: list[float] = []
    order: list[float] = []
    saved = None
    for _ in range(4):
        job = Job(size, seed, saved)
        job.epoch(audio, losses, order)
        saved = job.checkpoint(with_generator=healthy)
    return {"loss": losses, "order": order}
