"""Embeddings over tp: the vocabulary is cut, and with sp the result is cut along the sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.embedding import Embedding, TokenEmbedding
from pytest_trainsafe.reference_models.config import TransformerConfig
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.marks import mark_split
from pytest_trainsafe.reference_models.parallel.regions import reduce_out, split_into_shards


class VocabParallelEmbedding(nn.Module):
    """Tokens [batch, sequence] to [batch, sequence, hidden], from this rank's part of the table.

    A rank yields zeros for tokens of other ranks; exactly one rank yields each token's vector,
    and the sum over tp has them all.
    """

    def __init__(self, config: TransformerConfig, axes: Axes) -> None:
        super().__init__()
        self.axes = axes
        self.rows = config.vocabulary // axes.tp.size
        self.weight = nn.Parameter(torch.empty(self.rows, config.hidden))
        mark_split(self.weight, 0)

    def forward(self, tokens: Tensor) -> Tensor:
        first = self.axes.tp.rank * self.rows
        foreign = (tokens < first) | (tokens >= first + self.rows)
        rows = (tokens - first).masked_fill(foreign, 0)
        if self.axes.planted("tp-embedding-mask"):
            # The mask is made anew, but from the rows, which are no tokens any more.
            foreign = (rows < first) | (rows >= first + self.rows)
        vectors = F.embedding(rows, self.weight).masked_fill(foreign[..., None], 0)
        return reduce_out(vectors, self.axes.tp)


class SequenceParallelEmbedding(Embedding):
    """The sum of both embeddings, of which this rank keeps its shard of the sequence."""

    def __init__(self, config: TransformerConfig, axes: Axes) -> None:
        super().__init__(config)
        self.axes = axes

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return split_into_shards(super().forward(tokens, positions), 1, self.axes.tp)


class SequenceParallelTokenEmbedding(TokenEmbedding):
    """The embedding, of which this rank keeps its shard of the sequence."""

    def __init__(self, config: TransformerConfig, axes: Axes) -> None:
        super().__init__(config)
        self.axes = axes

    def forward(self, tokens: Tensor) -> Tensor:
        return split_into_shards(super().forward(tokens), 1, self.axes.tp)
