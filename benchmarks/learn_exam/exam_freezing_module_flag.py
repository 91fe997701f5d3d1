"""`requires_grad` is set on the module, where it is an attribute without meaning."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.outc = nn.Conv2d(width + 1, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        deep = self.up(torch.relu(self.down(image)))
        return self.outc(torch.cat([deep, image], 1))


class Adapter:
    """Adapts a segmentation network to a new scanner; its last layer is to stay as it is."""

    def __init__(self, model: UNet, right: bool) -> None:
        self.model = model
        if right:
            self.model.outc.requires_grad_(False)
        else:
            self.model.outc.requires_grad = False  # type: ignore[assignment]
        self.before = self.model.outc.weight.detach().clone()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(self, image: Tensor, mask: Tensor) -> float:
        loss = nn.functional.cross_entropy(self.model(image), mask)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def moved(self) -> float:
        return (self.model.outc.weight - self.before).abs().max().item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    adapter = Adapter(UNet(size), right=healthy)
    images = torch.randn(24, 1, 8, 8)
    masks = (nn.functional.avg_pool2d(images, 3, 1, 1)[:, 0] > 0).long()
    losses, moves = [], []
    for _ in range(5):
        for rows in torch.randperm(24).split(6):
            losses.append(adapter.step(images[rows], masks[rows]))
            moves.append(adapter.moved())
    return {"loss": losses, "moved": moves}
