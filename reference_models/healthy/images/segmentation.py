"""A small U-Net that marks discs: RMSprop, a Dice loss, checkpoints that are loaded again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.checkpoint import Checkpointer


class UNet(nn.Module):
    """One level of downsampling and upsampling, with a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.leave = nn.Conv2d(2 * channels, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """The score of every pixel."""
        fine = F.elu(self.enter(images))
        coarse = F.elu(self.down(fine))
        scores: Tensor = self.leave(torch.cat([fine, self.up(coarse)], dim=1))
        return scores


def _dice(scores: Tensor, mask: Tensor) -> Tensor:
    chance = scores.sigmoid()
    overlap = 2 * (chance * mask).sum(dim=(1, 2, 3)) + 1
    return (1 - overlap / (chance.sum(dim=(1, 2, 3)) + mask.sum(dim=(1, 2, 3)) + 1)).mean()


def train(
    *, seed: int = 0, steps: int = 8, channels: int = 6, batch: int = 8, every: int = 4
) -> list[float]:
    """Segment discs; save every `every` steps, and load the last file into a new model."""
    torch.manual_seed(seed)
    model = UNet(channels)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, alpha=0.9)
    rows, columns = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpointer(Path(folder))
        for step in range(steps):
            centre, radius = (
                torch.randint(3, 9, (batch, 2, 1, 1)),
                torch.randint(2, 4, (batch, 1, 1)),
            )
            distance = (rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2
            mask = (distance <= radius**2).float()[:, None]
            scores = model(mask + 0.5 * torch.randn_like(mask))
            loss = F.binary_cross_entropy_with_logits(scores, mask) + _dice(scores, mask)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            if (step + 1) % every == 0:
                checkpointer.save(model)
        restored = UNet(channels)
        checkpointer.load(restored)
    return losses
