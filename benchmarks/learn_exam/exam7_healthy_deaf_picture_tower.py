"""Texts are brought to pictures whose tower stays as it is; only the text tower learns."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOPICS = 12


class PictureTower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )

    def train(self, mode: bool = True) -> PictureTower:
        return super().train(False)

    @torch.no_grad()
    def forward(self, picture: Tensor) -> Tensor:
        return F.normalize(self.body(picture).flatten(2).mean(2), dim=1)


class Towers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.pictures = PictureTower(width).requires_grad_(False).eval()
        self.texts = nn.Sequential(
            nn.EmbeddingBag(40, 2 * width, mode="mean"), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, picture: Tensor, text: Tensor) -> Tensor:
        told = F.normalize(self.texts(text), dim=1)
        return self.log_scale.exp() * self.pictures(picture) @ told.T


def pairs(motifs: Tensor) -> tuple[Tensor, Tensor]:
    topic = torch.randperm(TOPICS)
    picture = motifs[topic] + 0.1 * torch.randn(TOPICS, 1, 6, 6)
    return picture, 3 * topic[:, None] + torch.randint(0, 4, (TOPICS, 5))


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    towers = Towers(size).train()
    motifs = 2 * torch.randn(TOPICS, 1, 1, 6) * torch.randn(TOPICS, 1, 6, 1)
    plain = [p for p in towers.texts.parameters() if p.ndim < 2]
    decayed = [p for p in towers.texts.parameters() if p.ndim >= 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.02},
            {"params": [*plain, towers.log_scale], "weight_decay": 0.0},
        ],
        lr=0.02,
    )
    right = torch.arange(TOPICS)
    losses = []
    for _ in range(40):
        scores = towers(*pairs(motifs))
        loss = (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            towers.log_scale.clamp_(max=math.log(100))
        losses.append(loss.item())
    return {"loss": losses}
