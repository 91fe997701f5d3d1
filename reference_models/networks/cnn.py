"""A small residual convolutional network on one device.

It uses group normalisation (Wu and He 2018), which normalises each picture independently.  With
batch normalisation, the outputs would be the same as on a single device, because a rank computes
whole micro-batches, but each dp rank's running averages would include only its own micro-batches.
"""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.loss import CrossEntropy

#: The number of groups of channels; the channels of a group are normalised together.
GROUPS = 2


class Block(nn.Module):
    """A residual block of two convolutions; maps [batch, channels, h, w] to the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.conv1(self.relu1(self.norm1(pictures)))
        added: Tensor = self.conv2(self.relu2(self.norm2(hidden)))
        return pictures + added


class CNN(nn.Module):
    """The model: `model(pictures, kinds)` returns the loss of every picture, [batch]."""

    def __init__(self, channels: int, blocks: int, kinds: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.output_layer = nn.Linear(channels, kinds)
        self.cross_entropy = CrossEntropy()

    def forward(self, pictures: Tensor, kinds: Tensor) -> Tensor:
        hidden = self.norm(self.blocks(self.stem(pictures)))
        logits = self.output_layer(self.pool(hidden).flatten(1))
        losses: Tensor = self.cross_entropy(logits[:, None], kinds[:, None])
        return losses[:, 0]
