"""A vision-language model that answers questions about images with yes or no.

Its base class, `reference_models.toolkit.pretrained.PretrainedModel`, initialises its parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.pretrained import (
    PretrainedModel,
    ResidualProjection,
)
from pytest_trainsafe.reference_models.toolkit.processing import (
    ImageTextProcessor,
    Paired,
    TextProcessor,
)

QUESTIONS = ("is the image bright", "is the left side bright", "is the top bright")


class Reader(nn.Module):
    """A perceptron in the residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln, self.fc = nn.LayerNorm(width), nn.Linear(width, width)
        self.c_proj = ResidualProjection(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after this perceptron."""
        added: Tensor = self.c_proj(torch.tanh(self.fc(self.ln(x))))
        return x + added


class VisionLanguageModel(PretrainedModel):
    """Answers no or yes from the pooled embeddings of patches and characters."""

    layers, std = 3, 0.08

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Linear(16, width)
        self.words = nn.Embedding(TextProcessor.vocabulary, width)
        self.readers = nn.Sequential(*(Reader(width) for _ in range(self.layers)))
        self.answer = nn.Linear(width, 2)
        self.post_init()

    def forward(self, inputs: Paired) -> Tensor:
        """The scores [batch, 2] of the answers "no" and "yes"."""
        patches = self.patches(F.unfold(inputs.pixel_values, 4, stride=4).transpose(1, 2))
        pooled = patches.mean(dim=1) + self.words(inputs.input_ids).mean(dim=1)
        scores: Tensor = self.answer(self.readers(pooled))
        return scores


def train(
    *, seed: int = 0, steps: int = 8, width: int = 24, batch: int = 9, max_length: int = 30
) -> list[float]:
    """Train epochs of three steps, in which the last batch is smaller than the others."""
    torch.manual_seed(seed)
    processor, model = ImageTextProcessor(), VisionLanguageModel(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
    losses = []
    for step in range(steps):
        count = batch if step % 3 < 2 else batch - 2
        images = torch.randn(count, 1, 8, 8).abs()
        asked = [step % 3] * count
        images[torch.arange(count) % 2 == 0, :, :, :4] += 1.0
        answers = (images[..., :4].mean(dim=(1, 2, 3)) > images[..., 4:].mean(dim=(1, 2, 3))).long()
        inputs = processor(images, [QUESTIONS[each] for each in asked], max_length=max_length)
        loss = F.cross_entropy(model(inputs), answers)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses
