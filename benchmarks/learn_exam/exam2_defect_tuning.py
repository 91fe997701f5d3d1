"""A backbone from one camera, of which a new head is tuned on images from another camera."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Inspector(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(9 * width, 2))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.backbone(images))
        return scores


def photos(count: int, light: float) -> tuple[Tensor, Tensor]:
    images = light + 0.5 * torch.randn(count, 1, 6, 6)
    defect = torch.randint(0, 2, (count,))
    images[:, 0, 2:4, 2:4] += 2.0 * defect.view(-1, 1, 1)
    return images, defect


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Inspector(size)
    loss_of = nn.CrossEntropyLoss()
    first = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(12):
        images, defect = photos(24, 0.0)
        loss = loss_of(model(images), defect)
        first.zero_grad()
        loss.backward()
        first.step()
    model.backbone.requires_grad_(False)
    model.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(9 * size, 2))
    second = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    losses, held_out = [], []
    check, answers = photos(64, 0.6)
    for _ in range(4):
        model.train()
        if healthy:
            model.backbone.eval()
        for _ in range(4):
            images, defect = photos(24, 0.6)
            loss = loss_of(model(images), defect)
            second.zero_grad()
            loss.backward()
            second.step()
            losses.append(loss.item())
        model.eval()
        with torch.inference_mode():
            held_out.append(loss_of(model(check), answers).item())
    return {"loss": losses, "held_out": held_out}
