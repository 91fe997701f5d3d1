"""Predicts a ward's load; the job is stopped after some epochs, and a second job goes on."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Job:
    data: TensorDataset
    width: int
    split_seed: int | None
    log: dict[str, list[float]] = field(default_factory=lambda: {"loss": [], "valid": []})

    def run(self, file: Path, until: int) -> None:
        rng = None
        if self.split_seed is not None:
            rng = torch.Generator().manual_seed(self.split_seed)
        keep, hold = random_split(self.data, [96, 32], generator=rng)
        model = nn.Sequential(nn.Linear(9, self.width), nn.ReLU(), nn.Linear(self.width, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        epoch = 0
        if file.exists():
            saved: dict[str, Any] = torch.load(file, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            epoch = saved["epoch"] + 1
        for at in range(epoch, until):
            model.train()
            for x, y in DataLoader(keep, batch_size=24, shuffle=True):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                self.log["loss"].append(loss.item())
            self.log["valid"].append(self.validate(model, DataLoader(hold, batch_size=32)))
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"epoch": at}, file)

    @torch.no_grad()
    def validate(self, model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
        model.eval()
        return sum(nn.functional.mse_loss(model(x), y).item() for x, y in loader)


def train(healthy: bool = True, seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(128, 9)
    y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.1 * torch.randn(128, 1)
    job = Job(TensorDataset(x, y), size, split_seed=42 if healthy else None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "last.pt"
        job.run(file, until=5)
        job.run(file, until=10)
    return job.log
