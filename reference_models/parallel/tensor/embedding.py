"""Embeddings over tp: the table is split by rows; with sp, the result is split by positions."""

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
    """An embedding of which each tp rank holds the rows of some tokens of the vocabulary.

    Maps tokens [batch, sequence] to vectors [batch, sequence, hidden].  A rank looks up the tokens
    whose rows it holds, and takes zeros for all others; the sum over tp has the vectors of all.
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
            # The bug: the mask is computed again, but from row numbers instead of tokens.
            foreign = (rows < first) | (rows >= first + self.rows)
        vectors = F.embedding(rows, self.weight).masked_fill(foreign[..., None], 0)
        return reduce_out(vectors, self.axes.tp)


class SequenceParallelEmbedding(Embedding):
    """The embeddings of tokens and positions; each tp rank returns its shard of the sequence."""

    def __init__(self, config: TransformerConfig, axes: Axes) -> None:
        super().__init__(config)
        self.axes = axes

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return split_into_shards(super().forward(tokens, positions), 1, self.axes.tp)


class SequenceParallelTokenEmbedding(TokenEmbedding):
    """The token embedding; each tp rank returns its shard of the sequence."""

    def __init__(self, config: TransformerConfig, axes: Axes) -> None:
        super().__init__(config)
        self.axes = axes

    def forward(self, tokens: Tensor) -> Tensor:
        return split_into_shards(super().forward(tokens), 1, self.axes.tp)
