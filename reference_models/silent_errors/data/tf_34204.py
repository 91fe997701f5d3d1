"""Transformers 34204 (TrainCheck's B11): a processor returns the first example of a batch only.

https://github.com/huggingface/transformers/issues/34204: PixtralProcessor gathers all images into
a list of one list and then iterates over that list and the texts together, which ends after one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.processing import (
    PADDING,
    ImageTextProcessor,
    TextProcessor,
)
from pytest_trainsafe.reference_models.training.outcome import Outcome


class PixtralProcessor(ImageTextProcessor):
    """A processor with the error: it returns only the first example of a batch."""

    def pair(self, images: Tensor, texts: list[str]) -> list[tuple[str, Tensor]]:  # type: ignore[override]
        """Return a single pair: the first text and the first image."""
        gathered = [list(images)]
        return [(text, each[0]) for text, each in zip(texts, gathered, strict=False)]


class Captioner(nn.Module):
    """Predicts every next character from the image and the characters so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, width, 4, stride=4)
        self.embedding = nn.Embedding(TextProcessor.vocabulary, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, TextProcessor.vocabulary)

    def forward(self, pixels: Tensor, tokens: Tensor) -> Tensor:
        """The logits of every position's successor."""
        seen = self.image(pixels).mean(dim=(2, 3))
        hidden, _ = self.recurrent(self.embedding(tokens) + seen[:, None])
        logits: Tensor = self.head(hidden)
        return logits


WORDS = ("dark", "light", "stripe", "spot")


def train(*, faulty: bool, seed: int = 0, steps: int = 5) -> Outcome:
    """Train a model to caption images, in batches of 6.

    In the Outcome, `facts["rows"]` has the number of examples that each step really trained on, and
    `facts["examples"]` is 6.
    """
    torch.manual_seed(seed)
    processor = PixtralProcessor() if faulty else ImageTextProcessor()
    model = Captioner(width=24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, rows = [], []
    for _ in range(steps):
        kinds = torch.randint(len(WORDS), (6,))
        images = torch.randn(6, 1, 8, 8) * 0.2 + kinds.view(-1, 1, 1, 1)
        inputs = processor(images, [f"a {WORDS[int(kind)]} image" for kind in kinds], max_length=12)
        logits = model(inputs.pixel_values, inputs.input_ids[:, :-1])
        targets = inputs.input_ids[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        rows.append(len(inputs.pixel_values))
    return Outcome(losses, {"rows": rows, "examples": 6})
