"""A small LSTM language model on one device."""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.loss import CrossEntropy
from pytest_trainsafe.reference_models.config import VOCABULARY


class LSTM(nn.Module):
    """The model: `model(tokens, targets)` returns the loss of every token, [batch, sequence].

    The states are zero at the start of each sequence.  The module `lstm` returns (outputs, (hidden,
    cells)): outputs [batch, sequence, hidden] and the last states, each [layers, batch, hidden].
    """

    def __init__(self, layers: int, hidden: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.output_layer = nn.Linear(hidden, vocabulary)
        self.cross_entropy = CrossEntropy()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        losses: Tensor = self.cross_entropy(self.output_layer(outputs), targets)
        return losses
