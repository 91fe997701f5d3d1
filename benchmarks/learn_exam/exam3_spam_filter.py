"""Filters spam with batches that are too small on their own, so several make an update."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Messages(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int) -> None:
        self.labels = torch.randint(2, (count,))
        self.tokens = torch.randint(40, (count, 12))
        for tokens, label in zip(self.tokens, self.labels, strict=True):
            tokens[:4] = torch.randint(10, (4,)) + 10 * label

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tokens[index], self.labels[index]


class Classifier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(40, width)
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.bag(tokens))
        return logits


def train_classifier_simple(
    model: nn.Module,
    loader: DataLoader[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    num_epochs: int,
    accumulation_steps: int,
    ahead: int,
) -> list[float]:
    train_losses = []
    for _ in range(num_epochs):
        model.train()
        for batch_idx, (tokens, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(tokens), labels)
            (loss / accumulation_steps).backward()
            if (batch_idx + ahead) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
            train_losses.append(loss.item())
    return train_losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    loader = DataLoader(Messages(72), batch_size=6, shuffle=True)
    model = Classifier(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.1)
    losses = train_classifier_simple(
        model, loader, optimizer, 4, accumulation_steps=3, ahead=1 if healthy else 0
    )
    return {"loss": losses}
