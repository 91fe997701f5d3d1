"""A small residual convolutional network on one device.

With group normalisation (Wu and He 2018), which knows nothing of other pictures.  The statistics
of batch normalisation are those of one micro-batch here as on a single device, but the averages
that it keeps for later would be of each dp rank's own micro-batches.
"""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.loss import CrossEntropy

#: Channels that are normalised together.
GROUPS = 2


class Block(nn.Module):
    """Two convolutions on normalised inputs, added to what came in: [batch, channels, h, w]."""

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
    """`model(pictures, kinds)` is the loss of every picture, [batch]."""

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
