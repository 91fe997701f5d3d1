"""Causal self-attention with one fused projection for queries, keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.config import AnyConfig, qkv_blocks


class SelfAttention(nn.Module):
    """Causal self-attention: maps [batch, sequence, hidden] to the same shape.

    The output of `linear_qkv` has all queries, then all keys, then all values; within each, head by
    head.  `queries_per_key` consecutive heads of queries share a head of keys and values.
    """

    def __init__(self, config: AnyConfig) -> None:
        super().__init__()
        self.queries_per_key = config.heads // config.kv_heads
        width, bias = config.hidden, config.bias
        self.linear_qkv: nn.Module = nn.Linear(width, sum(qkv_blocks(config)), bias=bias)
        self.core_attention: nn.Module = CoreAttention(config.head_dim)
        self.linear_proj: nn.Module = nn.Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.project(hidden)
        mixed: Tensor = self.linear_proj(self.core_attention(query, key, value))
        return mixed

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of the hidden states.

        Under tensor parallelism these are only the heads of this rank.
        """
        projected = self.linear_qkv(hidden)
        narrow = projected.shape[-1] // (self.queries_per_key + 2)
        query, key, value = projected.split([self.queries_per_key * narrow, narrow, narrow], dim=-1)
        return query, key, value


class CoreAttention(nn.Module):
    """Causal attention: maps queries, keys and values to the weighted sums of the values.

    All have the shape [batch, sequence, heads * head_dim]; keys and values may have fewer heads,
    and the values of a head another width than `head_dim`.  The result has as many heads as the
    queries, of the values' width.  The numbers of heads follow from the widths, so the inputs may
    have only some of the model's heads.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        positions = torch.arange(query.shape[1], device=query.device)
        return attend(query, key, value, self.head_dim, positions)


def attend(query: Tensor, key: Tensor, value: Tensor, head_dim: int, positions: Tensor) -> Tensor:
    """Return causal attention over a whole sequence of keys and values, for some of its queries.

    `positions`, of shape [queries], has the position of each query in the sequence.  Keys and
    values are complete and in order: key j has position j.  If there are fewer heads of keys than
    of queries, several heads of queries share one.  The softmax is computed in float32, or in
    float64 for float64 inputs.
    """
    query, key, value = heads_of(query, key, value, head_dim)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.transpose(-1, -2)).to(wide) / math.sqrt(head_dim)
    future = positions[:, None] < torch.arange(key.shape[-2], device=key.device)
    weights = scores.masked_fill(future, -math.inf).softmax(dim=-1).to(value.dtype)
    return (weights @ value).transpose(1, 2).flatten(2)


def heads_of(
    query: Tensor, key: Tensor, value: Tensor, head_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return all three as [batch, heads, sequence, width of a head].

    Heads of keys and values are repeated, so that all three have the same number of heads.
    """
    heads, kv_heads = query.shape[-1] // head_dim, key.shape[-1] // head_dim
    query, key, value = (
        _split_heads(part, count)
        for part, count in ((query, heads), (key, kv_heads), (value, kv_heads))
    )
    shared = heads // kv_heads
    return query, key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)


def _split_heads(tensor: Tensor, heads: int) -> Tensor:
    """Reshape [batch, sequence, heads * width] to [batch, heads, sequence, width]."""
    return tensor.view(*tensor.shape[:2], heads, -1).transpose(1, 2)
