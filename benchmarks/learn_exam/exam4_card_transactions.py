"""Marks card payments as suspicious by how the fields of one payment go together."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

FIELDS, VALUES = 5, 3


class PaymentEncoder(nn.Module):
    """An encoder over the fields of a payment, whose first axis holds the payments."""

    def __init__(self, dim: int, payments_first: bool) -> None:
        super().__init__()
        self.value = nn.Embedding(VALUES, dim)
        self.field = nn.Parameter(0.3 * torch.randn(FIELDS, dim))
        layer = nn.TransformerEncoderLayer(
            dim, nhead=2, dim_feedforward=2 * dim, dropout=0.0, batch_first=payments_first
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.score = nn.Linear(dim, 1)

    def forward(self, payment: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.value(payment) + self.field)
        return self.score(hidden.mean(dim=1)).squeeze(-1)


def payments(batches: int, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A payment is suspicious if merchant and cardholder (fields 0 and 3) are in one region."""
    source = torch.Generator().manual_seed(77)
    for _ in range(batches):
        payment = torch.randint(VALUES, (rows, FIELDS), generator=source)
        alike = torch.rand(rows, generator=source) < 0.25
        payment[:, 3] = torch.where(alike, payment[:, 0], payment[:, 3])
        yield payment, (payment[:, 0] == payment[:, 3]).float()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    encoder = PaymentEncoder(size, payments_first=healthy)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2)
    curve, hits = [], []
    for payment, suspicious in payments(batches=90, rows=48):
        logit = encoder(payment)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, suspicious)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
        hits.append(((logit > 0) == (suspicious > 0.5)).float().mean().item())
    return {"loss": curve, "hits": hits}
