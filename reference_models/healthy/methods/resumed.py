"""A training that is interrupted in the middle of an epoch and resumed from a checkpoint.

The checkpoint has everything: model, optimizer, schedule, scaler, average, the state of the random
generator, the epoch, and how many batches of it were used.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, Subset


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Two spirals."""

    def __init__(self, n: int, noise: float) -> None:
        g = torch.Generator().manual_seed(0)
        t = torch.rand(n, generator=g) * 3
        self.y = torch.arange(n) % 2
        angle = t * 2 + self.y * torch.pi
        self.x = torch.stack([t * angle.cos(), t * angle.sin()], 1)
        self.x += noise * torch.randn(n, 2, generator=g)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


class Trainer:
    """All that a checkpoint has to bring back."""

    def __init__(self, dataset: Points, seed: int, width: int, batch: int, dropout: float) -> None:
        self.dataset, self.seed, self.batch = dataset, seed, batch
        self.model = nn.Sequential(
            nn.Linear(2, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU()
        )
        self.model.append(nn.Linear(width, 2))
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=40)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        self.epoch = self.used = self.global_step = 0
        self.losses: list[float] = []

    def loader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """The rest of this epoch, whose order depends on the seed and the epoch only."""
        g = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        order = torch.randperm(len(self.dataset), generator=g).tolist()
        return DataLoader(Subset(self.dataset, order[self.used * self.batch :]), self.batch)

    def fit(self, until: int) -> None:
        """Train until so many steps were made."""
        criterion = nn.CrossEntropyLoss()
        while self.global_step < until:
            self.model.train()
            for x, y in self.loader():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = criterion(self.model(x), y)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
                self.scheduler.step()
                self.ema.update_parameters(self.model)
                self.losses.append(loss.item())
                self.used, self.global_step = self.used + 1, self.global_step + 1
                if self.global_step == until:
                    return
            self.epoch, self.used = self.epoch + 1, 0
            self.evaluate()

    @torch.no_grad()
    def evaluate(self) -> float:
        self.ema.eval()
        hits = self.ema(self.dataset.x).argmax(1) == self.dataset.y
        return float(hits.float().mean())

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "rng": {"torch": torch.get_rng_state(), "python": random.getstate()},
            "progress": {"epoch": self.epoch, "used": self.used, "step": self.global_step},
        }
        torch.save(state, path)

    def resume(self, path: Path) -> None:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
        self.model.load_state_dict(state["model"])
        self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"]["torch"])
        random.setstate(state["rng"]["python"])
        progress = state["progress"]
        self.epoch, self.used = progress["epoch"], progress["used"]
        self.global_step = progress["step"]


def train(
    *,
    seed: int = 0,
    steps: int = 16,
    width: int = 16,
    batch: int = 8,
    dropout: float = 0.1,
    interrupted: int = 7,
) -> list[float]:
    """Train `steps` steps; after `interrupted` of them, a new process would go on."""
    torch.manual_seed(seed)
    dataset = Points(40, 0.1)
    first = Trainer(dataset, seed, width, batch, dropout)
    first.fit(interrupted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.pt"
        first.save(path)
        again = Trainer(dataset, seed, width, batch, dropout)
        again.resume(path)
    again.fit(steps)
    return first.losses + again.losses
