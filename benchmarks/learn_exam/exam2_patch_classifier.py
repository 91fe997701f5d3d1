"""A patch mixer trained for a few epochs, with a rate that is annealed batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class PatchMixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.across = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2)
        tokens = tokens + torch.tanh(self.across(tokens))
        scores: Tensor = self.head(self.norm(tokens.mean(2)))
        return scores


class Trainer:
    def __init__(self, model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> None:
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        self.record: dict[str, list[float]] = {"loss": [], "lr": []}

    def run(self, epochs: int, horizon: int) -> None:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=horizon)
        for _ in range(epochs):
            for images, labels in self.loader:
                loss = nn.functional.cross_entropy(self.model(images), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.record["loss"].append(loss.item())
                self.record["lr"].append(float(schedule.get_last_lr()[0]))
                schedule.step()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    labels = torch.arange(72) % 4
    images = 0.5 * torch.randn(72, 1, 8, 8)
    for row, label in enumerate(labels.tolist()):
        top, left = 4 * (label // 2), 4 * (label % 2)
        images[row, 0, top : top + 4, left : left + 4] += torch.linspace(0, 1 + label, 4)
    loader = DataLoader(TensorDataset(images, labels), batch_size=12, shuffle=True)
    trainer = Trainer(PatchMixer(size), loader)
    epochs = 5
    trainer.run(epochs, epochs * len(loader) if healthy else epochs)
    return trainer.record
