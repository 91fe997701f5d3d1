"""Images and captions in one space: a contrastive loss with a learned temperature, Adamax."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.processing import (
    ImageTextProcessor,
    Paired,
    TextProcessor,
)

CAPTIONS = ("bars that lie", "bars that stand", "a board of squares", "nothing at all")


class TwoTowers(nn.Module):
    """One tower for images, one for texts, and a temperature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten())
        self.project = nn.Linear(36 * width, width)
        self.text = nn.Embedding(TextProcessor.vocabulary, width)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: Paired) -> Tensor:
        """The scaled cosine similarity of every image and every text."""
        images = F.normalize(self.project(self.image(inputs.pixel_values)), dim=1)
        texts = F.normalize(self.text(inputs.input_ids).mean(dim=1), dim=1)
        return images @ texts.T * self.temperature.exp()


def train(
    *, seed: int = 0, steps: int = 8, width: int = 12, copies: int = 1, max_length: int = 20
) -> list[float]:
    """Learn which caption belongs to which picture; a batch has each caption `copies` times."""
    torch.manual_seed(seed)
    processor, model = ImageTextProcessor(), TwoTowers(width)
    optimizer = torch.optim.Adamax(model.parameters(), lr=2e-2)
    bars = torch.arange(8).remainder(2).float()
    lying, standing = bars[:, None].expand(8, 8), bars[None].expand(8, 8)
    kinds = torch.stack([lying, standing, (lying - standing).abs(), torch.zeros(8, 8)])
    losses = []
    for _ in range(steps):
        order = torch.randperm(4).repeat(copies)
        images = kinds[order, None] + 0.2 * torch.randn(len(order), 1, 8, 8)
        texts = [CAPTIONS[int(each)] for each in order]
        scores = model(processor(images, texts, max_length=max_length))
        same = order[:, None].eq(order[None]).float()
        same = same / same.sum(dim=1, keepdim=True)
        loss = (F.cross_entropy(scores, same) + F.cross_entropy(scores.T, same)) / 2
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses
