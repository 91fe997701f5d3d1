"""Embeddings of tokens, with or without learned positions: the first module of a model."""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.config import TransformerConfig


class TokenEmbedding(nn.Module):
    """Maps tokens [batch, sequence] to [batch, sequence, hidden]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.word_embeddings: nn.Module = nn.Embedding(config.vocabulary, config.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        words: Tensor = self.word_embeddings(tokens)
        return words


class Embedding(nn.Module):
    """Maps tokens [batch, sequence] and positions [1, sequence] to [batch, sequence, hidden]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.word_embeddings: nn.Module = nn.Embedding(config.vocabulary, config.hidden)
        self.position_embeddings = nn.Embedding(config.seq_len, config.hidden)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        words: Tensor = self.word_embeddings(tokens)
        places: Tensor = self.position_embeddings(positions)
        return words + places
