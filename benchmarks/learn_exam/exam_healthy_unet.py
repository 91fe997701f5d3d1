"""Segmentation with a U-Net, a Dice loss and test-time evaluation."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def double(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
        nn.Conv2d(outer, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.high, self.low = double(1, width), double(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.merge, self.out = double(2 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.high(x)
        low = self.low(nn.functional.max_pool2d(high, 2))
        return self.out(self.merge(torch.cat([high, self.up(low)], 1)))


def dice_loss(scores: Tensor, masks: Tensor) -> Tensor:
    found = scores.sigmoid()
    return 1 - (2 * (found * masks).sum() + 1) / (found.sum() + masks.sum() + 1)


def train(seed: int = 0, size: int = 8) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    masks = torch.zeros(20, 1, 8, 8)
    for number in range(20):
        top, left = torch.randint(0, 5, (2,)).tolist()
        masks[number, :, top : top + 4, left : left + 4] = 1
    images = masks + 0.4 * torch.randn_like(masks)
    net = UNet(size)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.9)
    losses, overlap = [], []
    for _ in range(6):
        net.train()
        for rows in torch.randperm(16).split(4):
            scores = net(images[rows])
            loss = nn.functional.binary_cross_entropy_with_logits(scores, masks[rows])
            loss = loss + dice_loss(scores, masks[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        with torch.inference_mode():
            overlap.append(1 - dice_loss(net(images[16:]), masks[16:]).item())
    return {"loss": losses, "overlap": overlap}
