"""Causal multi-head self-attention with one fused projection for queries, keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.config import GPTConfig


class SelfAttention(nn.Module):
    """[batch, sequence, hidden] to the same shape.

    `linear_qkv` yields all queries, then all keys, then all values; within each, head by head.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.linear_qkv: nn.Module = nn.Linear(config.hidden, 3 * config.hidden)
        self.core_attention: nn.Module = CoreAttention(config.head_dim)
        self.linear_proj: nn.Module = nn.Linear(config.hidden, config.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.linear_qkv(hidden).chunk(3, dim=-1)
        mixed: Tensor = self.linear_proj(self.core_attention(query, key, value))
        return mixed


class CoreAttention(nn.Module):
    """Queries, keys and values [batch, sequence, heads * head_dim] to the mixed values, likewise.

    The number of heads is read from the width, so it may be a part of the model's heads.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        positions = torch.arange(query.shape[1], device=query.device)
        return attend(query, key, value, self.head_dim, positions)


def attend(query: Tensor, key: Tensor, value: Tensor, head_dim: int, positions: Tensor) -> Tensor:
    """Each query's causal mixture of the values; `positions` [queries] says where they stand.

    Keys and values are whole and in order: key j stands at position j.  The softmax is computed
    in float32, or in float64 where the inputs are.
    """
    query, key, value = (_split_heads(part, head_dim) for part in (query, key, value))
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.transpose(-1, -2)).to(wide) / math.sqrt(head_dim)
    future = positions[:, None] < torch.arange(key.shape[-2], device=key.device)
    weights = scores.masked_fill(future, -math.inf).softmax(dim=-1).to(value.dtype)
    return (weights @ value).transpose(1, 2).flatten(2)


def _split_heads(tensor: Tensor, head_dim: int) -> Tensor:
    """[batch, sequence, heads * head_dim] to [batch, heads, sequence, head_dim]."""
    return tensor.view(*tensor.shape[:2], -1, head_dim).transpose(1, 2)
