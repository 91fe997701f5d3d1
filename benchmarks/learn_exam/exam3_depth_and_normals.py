"""Predicts depth and surface normals from one encoder; learned weights balance the two tasks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Scenes:
    """Endless batches of feature vectors with both targets, in units of their own."""

    def __init__(self, batch: int = 24) -> None:
        self.batch = batch
        self.mixing = torch.randn(10, 4)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        while True:
            views = torch.randn(self.batch, 10)
            hidden = torch.tanh(views @ self.mixing * 0.3)
            yield views, 4 * hidden[:, :1], nn.functional.normalize(hidden[:, 1:], dim=1)


class TwoHeads(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(10, width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        )
        self.depth = nn.Linear(width, 1)
        self.normals = nn.Linear(width, 3)

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.encoder(views)
        return self.depth(shared), nn.functional.normalize(self.normals(shared), dim=1)


class UncertaintyLoss(nn.Module):
    """Weighs the loss of each task by a log variance of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, depth: tuple[Tensor, Tensor], normals: tuple[Tensor, Tensor]) -> Tensor:
        errors = torch.stack(
            [
                nn.functional.smooth_l1_loss(*depth),
                1 - nn.functional.cosine_similarity(*normals).mean(),
            ]
        )
        total: Tensor = (torch.exp(-self.log_vars) * errors + self.log_vars).sum()
        return total


class Learner:
    def __init__(self, model: TwoHeads, criterion: UncertaintyLoss, whole: bool) -> None:
        self.model = model
        self.criterion = criterion
        parameters = list(model.parameters())
        if whole:
            parameters += criterion.parameters()
        self.optimizer = torch.optim.Adam(parameters, lr=1e-2)

    def fit(self, scenes: Scenes, steps: int) -> list[float]:
        losses = []
        for _, (views, depth, normals) in zip(range(steps), scenes, strict=False):
            found_depth, found_normals = self.model(views)
            loss = self.criterion((found_depth, depth), (found_normals, normals))
            self.optimizer.zero_grad()
            self.criterion.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    learner = Learner(TwoHeads(size), UncertaintyLoss(), whole=healthy)
    return {"loss": learner.fit(Scenes(), 30)}
