"""Reuses features that were learned on fruit to tell flowers apart with a new classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn, optim


class Classifier(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x).flatten(1))
        return scores


def pictures(count: int, classes: int, turn: int) -> tuple[Tensor, Tensor]:
    label = torch.arange(count) % classes
    image = 0.3 * torch.randn(count, 1, 8, 8)
    for i, c in enumerate(label.tolist()):
        row = (c * 2 + turn) % 8
        image[i, 0, row, :] += 1.0
    return image, label


def fit(
    net: Classifier, data: tuple[Tensor, Tensor], opt: optim.Optimizer, steps: int
) -> list[float]:
    losses = []
    for _ in range(steps):
        pick = torch.randint(0, len(data[0]), (24,))
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(data[0][pick]), data[1][pick])
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def train(healthy: bool = True, seed: int = 0, size: int = 8) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = Classifier(size, 3)
    fit(net, pictures(90, 3, turn=0), optim.Adam(net.parameters(), lr=1e-2), steps=20)
    # Freeze what was learned.
    for param in net.features.parameters():
        if healthy:
            param.requires_grad = False
        else:
            param.require_grad = False  # type: ignore[attr-defined]
    net.classifier = nn.Linear(4 * size, 4)
    opt = optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    return {"loss": fit(net, pictures(120, 4, turn=1), opt, steps=40)}
