"""Tells the calls of two whales apart in short recordings, of which one kind is rare."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


def record(count: int) -> TensorDataset:
    labels = (torch.arange(count) % 4 == 3).long()
    time = torch.linspace(0, 1, 40)
    pitch = torch.where(labels == 1, 9.0, 4.0) + torch.rand(count)
    waves = torch.sin(6.28 * pitch[:, None] * time) + 0.8 * torch.randn(count, 40)
    return TensorDataset(waves[:, None], labels)


def balanced(recordings: TensorDataset, each_recording: bool) -> WeightedRandomSampler:
    labels = recordings.tensors[1]
    weights = 1 / torch.bincount(labels).float()
    if each_recording:
        weights = weights[labels]
    return WeightedRandomSampler(weights.tolist(), num_samples=len(recordings))


class CallNet(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, channels, 7, stride=2),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Linear(channels, 2),
        )

    def forward(self, waves: Tensor) -> Tensor:
        logits: Tensor = self.layers(waves)
        return logits


class Trainer:
    def __init__(self, model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> None:
        self.model = model
        self.loader = loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
        self.history: list[float] = []

    def train_one_epoch(self) -> None:
        self.model.train()
        for waves, labels in self.loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(waves), labels)
            loss.backward()
            self.optimizer.step()
            self.history.append(loss.item())


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    recordings = record(96)
    sampler = balanced(recordings, each_recording=healthy)
    trainer = Trainer(CallNet(size), DataLoader(recordings, batch_size=16, sampler=sampler))
    for _ in range(5):
        trainer.train_one_epoch()
    return {"loss": trainer.history}
