"""Segmentation of discs with joint flips, borders that are ignored, and two losses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = 255


class SmallUNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.out = nn.Conv2d(2 * width, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = F.relu(self.down(images))
        coarse = F.relu(self.up(F.relu(self.norm(self.middle(fine)))))
        scores: Tensor = self.out(torch.cat((fine, coarse), dim=1))
        return scores


def scenes(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    axis = torch.arange(12.0)
    while True:
        centre = 3 + 6 * torch.rand(count, 2, 1, 1)
        far = ((axis.view(12, 1) - centre[:, 0]) ** 2 + (axis - centre[:, 1]) ** 2).sqrt()
        masks = (far < 3).long()
        masks[(far - 3).abs() < 0.3] = IGNORED
        images = (far < 3).float().unsqueeze(1) + 0.6 * torch.randn(count, 1, 12, 12)
        if torch.rand(()) < 0.5:
            images, masks = images.flip(-1), masks.flip(-1)
        yield images, masks


def dice(scores: Tensor, masks: Tensor) -> Tensor:
    known = masks != IGNORED
    chance, truth = scores.softmax(1)[:, 1][known], masks[known].float()
    return 1 - (2 * (chance * truth).sum() + 1) / (chance.sum() + truth.sum() + 1)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = SmallUNet(size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=16, power=0.9)
    losses = []
    for images, masks in itertools.islice(scenes(8), 16):
        scores = net(images)
        loss = F.cross_entropy(scores, masks, ignore_index=IGNORED) + dice(scores, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return {"loss": losses}
