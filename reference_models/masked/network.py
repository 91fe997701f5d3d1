"""A small transformer for sequences of unequal lengths, which masks padded keys.

Positions are not encoded, so that longer padding does not need a larger table of positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.judges.replay.per_example.dropout import per_example_dropout


class Attention(nn.Module):
    """Attention that masks padded keys; maps [batch, sequence, hidden] to the same shape."""

    def __init__(self, hidden: int, heads: int, fault: str) -> None:
        super().__init__()
        self.heads, self.fault = heads, fault
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        parts = self.qkv(hidden).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        if self.fault != "padding-attended":
            scores = scores.masked_fill(~mask[:, None, None], -math.inf)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        projected: Tensor = self.proj(mixed)
        return projected


class Dropout(nn.Module):
    """Dropout whose mask depends only on the sample's key, the layer and the element's position.

    `stream` is a name that differs between the layers.  `fault` may name a fault of
    `bugs/shared.py` to plant.
    """

    def __init__(self, rate: float, stream: str, fault: str) -> None:
        super().__init__()
        self.rate, self.stream, self.fault = rate, stream, fault
        self.calls = 0

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        self.calls += 1
        if self.fault == "recompute-draws-again":
            keys = keys + self.calls
        if self.fault == "dropout-of-padded-rows":
            # One key for the whole batch, and positions that count padded entries too.
            rows = hidden.flatten(0, 1)
            dropped = per_example_dropout(
                rows,
                self.rate,
                keys[:1].expand(len(rows)),
                stream=self.stream,
                positions={0: torch.arange(len(rows))},
            )
            return dropped.view_as(hidden)
        return per_example_dropout(hidden, self.rate, keys, stream=self.stream)


class Layer(nn.Module):
    """A pre-norm layer: attention, then an MLP, each added to the residual stream."""

    def __init__(self, hidden: int, heads: int, rate: float, stream: str, fault: str) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, fault)
        self.norm2 = nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, 2 * hidden)
        self.fc2 = nn.Linear(2 * hidden, hidden)
        self.dropout = Dropout(rate, stream, fault)

    def forward(self, hidden: Tensor, mask: Tensor, keys: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden), mask)
        added: Tensor = self.dropout(self.fc2(self.fc1(self.norm2(hidden)).relu()), keys)
        return hidden + added


class Masked(nn.Module):
    """The model: `model(tokens, mask, keys)` returns the logits [batch, sequence, ids].

    `mask` [batch, sequence] is True for tokens that are not padding.  `keys` [batch] has a key for
    each sample; `per_example_dropout` draws the sample's dropout masks from it.
    """

    def __init__(
        self, ids: int, layers: int, hidden: int, heads: int, rate: float, fault: str = ""
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ids, hidden)
        self.layers = nn.ModuleList(
            Layer(hidden, heads, rate, f"layers.{number}", fault) for number in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.output_layer = nn.Linear(hidden, ids, bias=False)
        self.recompute = False

    def forward(self, tokens: Tensor, mask: Tensor, keys: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute:
                hidden = checkpoint(layer, hidden, mask, keys, use_reentrant=False)
            else:
                hidden = layer(hidden, mask, keys)
        logits: Tensor = self.output_layer(self.norm(hidden))
        return logits
