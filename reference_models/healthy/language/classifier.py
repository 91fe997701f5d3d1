"""A text classifier trained by the trainer of `toolkit`, with gradient accumulation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from pytest_trainsafe.reference_models.toolkit.processing import PADDING, TextProcessor
from pytest_trainsafe.reference_models.toolkit.trainer import Trainer

SUBJECTS = ("the film", "this book", "a long play", "my new phone", "their song")
VERDICTS = (("great", "lovely", "wonderful"), ("awful", "boring", "terrible"))


class Sentiment(nn.Module):
    """A convolution over characters, with the largest response of each filter."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TextProcessor.vocabulary, 12, padding_idx=PADDING)
        self.convolution = nn.Conv1d(12, filters, 4, padding=2)
        self.head = nn.Linear(filters, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """The scores [batch, 2] of the two classes, positive and negative, for encoded texts."""
        responses = F.relu(self.convolution(self.embedding(ids).transpose(1, 2)))
        scores: Tensor = self.head(responses.amax(dim=2))
        return scores


def _loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def train(
    *, seed: int = 0, steps: int = 6, filters: int = 16, accumulation: int = 3, batch: int = 4
) -> list[float]:
    """Train epochs of two steps; the second step accumulates one batch less than the first."""
    torch.manual_seed(seed)
    texts, labels = [], []
    for number in range((2 * accumulation - 1) * batch):
        label = number % 2
        words = VERDICTS[label]
        texts.append(f"{SUBJECTS[number % len(SUBJECTS)]} is {words[number % len(words)]}")
        labels.append(label)
    encoded = TextProcessor()(texts, max_length=24)
    dataset = TensorDataset(encoded.input_ids, torch.tensor(labels))
    loader = DataLoader(dataset, batch_size=batch, shuffle=True)
    model = Sentiment(filters)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)
    return Trainer(
        model, optimizer, loader, _loss, epochs=steps // 2, accumulation=accumulation
    ).train()
