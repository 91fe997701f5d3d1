"""The vision tower is to be tuned, but its forward still runs without gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class VisionTower(nn.Module):
    def __init__(self, width: int, tuned: bool) -> None:
        super().__init__()
        self.tuned = tuned
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.tuned):
            return self.norm(self.patches(images).flatten(2).transpose(1, 2))


class SmallVLM(nn.Module):
    def __init__(self, width: int, tune_vision: bool) -> None:
        super().__init__()
        self.vision = VisionTower(width, tune_vision)
        self.connector = nn.Linear(width, width)
        self.words = nn.Embedding(6, width)
        self.answer = nn.Linear(width, 4)

    def forward(self, images: Tensor, question: Tensor) -> Tensor:
        seen = self.connector(self.vision(images)).mean(1)
        return self.answer(torch.tanh(seen + self.words(question)))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = SmallVLM(size, tune_vision=healthy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    images, question = torch.rand(48, 1, 8, 8), torch.randint(0, 6, (48,))
    answers = (images[:, 0, :4, :4].mean((1, 2)) > 0.5).long() + 2 * (question > 2).long()
    losses = []
    for step in range(24):
        rows = torch.arange(step * 12, step * 12 + 12) % 48
        loss = nn.functional.cross_entropy(model(images[rows], question[rows]), answers[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses, "tower": model.vision.patches.weight.detach().flatten().tolist()}
