"""A run is cut twice and goes on from a checkpoint with everything, random state included."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn


class Session:
    def __init__(self, width: int) -> None:
        self.model = nn.Sequential(
            nn.Linear(5, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 8, 0.5)
        self.step = 0

    def save(self, path: Path) -> None:
        parts = {
            name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")
        }
        torch.save(parts | {"step": self.step, "random": torch.get_rng_state()}, path)

    def load(self, path: Path) -> None:
        state = torch.load(path)
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(state[name])
        self.step = state["step"]
        torch.set_rng_state(state["random"])


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    random.seed(seed)
    losses: list[float] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        while len(losses) < 24:
            session = Session(size)
            if path.exists():
                session.load(path)
            for _ in range(8):
                x = torch.randn(16, 5)
                loss = nn.functional.mse_loss(session.model(x), x[:, :2].sum(1, keepdim=True))
                session.optimizer.zero_grad()
                loss.backward()
                session.optimizer.step()
                session.scheduler.step()
                session.step += 1
                losses.append(loss.item())
            session.save(path)
    return {"loss": losses}
