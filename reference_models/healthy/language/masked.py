"""A masked language model: accumulation by hand, bfloat16 autocast, two groups of parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.pretrained import PretrainedModel

MASK = 0


class Encoder(PretrainedModel):
    """torch's encoder layers between an embedding and logits."""

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(1, 12, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.logits = nn.Linear(width, vocabulary)
        self.post_init()

    def forward(self, ids: Tensor) -> Tensor:
        """The logits of every position."""
        scores: Tensor = self.logits(self.encoder(self.embedding(ids) + self.position))
        return scores


def train(
    *, seed: int = 0, steps: int = 6, width: int = 32, accumulate: int = 2, dropout: float = 0.1
) -> list[float]:
    """Fill masked positions of palindromes."""
    torch.manual_seed(seed)
    model = Encoder(10, width, dropout)
    plain = [each for each in model.parameters() if each.ndim < 2]
    decayed = [each for each in model.parameters() if each.ndim >= 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=5e-3
    )
    losses = []
    model.train()
    for _ in range(steps):
        total = 0.0
        for _ in range(accumulate):
            half = torch.randint(1, 10, (16, 6))
            ids = torch.cat([half, half.flip(1)], dim=1)
            hidden = torch.rand(16, 12) < 0.2
            hidden[:, 0] = True
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(ids.masked_fill(hidden, MASK))
            loss = F.cross_entropy(logits[hidden].float(), ids[hidden]) / accumulate
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses
