"""Transformers 33455 (TrainCheck's B15): training stops before the last epoch.

https://github.com/huggingface/transformers/issues/33455: the trainer computes the total number of
steps with the batches of an epoch divided by the accumulation count and rounded down, while an
incomplete window at the end of an epoch takes a step as well.  TrainCheck missed this error
in its evaluation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from pytest_trainsafe.reference_models.toolkit.trainer import Trainer
from pytest_trainsafe.reference_models.training.outcome import Outcome


class RoundingDown(Trainer):
    """A trainer with the error: it does not count the steps of incomplete accumulation windows."""

    def total_steps(self, batches: int) -> int:
        """Return the number of complete accumulation windows in all epochs."""
        return batches // self.accumulation * self.epochs


def _loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    tokens, labels = batch
    return F.cross_entropy(model(tokens), labels)


class Bag(nn.Module):
    """Classifies a sequence by the mean of its embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(24, 16), nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """The scores of every class."""
        scores: Tensor = self.head(self.embedding(tokens).mean(dim=1))
        return scores


def train(*, faulty: bool, seed: int = 0, steps: int = 9) -> Outcome:
    """Train for `steps` / 3 epochs; the 3 steps of an epoch use two, two and one batches.

    In the Outcome, `facts["batches"]` is the number of batches trained on, and `facts["max_steps"]`
    the trainer's total number of steps.
    """
    torch.manual_seed(seed)
    labels = torch.arange(9) % 3
    tokens = torch.randint(8, (9, 6)) + 8 * labels[:, None]
    loader = DataLoader(TensorDataset(tokens, labels), batch_size=2, shuffle=True)
    model = Bag()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    make = RoundingDown if faulty else Trainer
    trainer = make(model, optimizer, loader, _loss, epochs=steps // 3, accumulation=2)
    losses = trainer.train()
    return Outcome(losses, {"batches": trainer.batches, "max_steps": trainer.max_steps})
