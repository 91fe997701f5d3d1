"""Multi-head latent attention: queries, keys and values are projected from narrow latent vectors.

Positions rotate separate elements of queries and keys, because a rotation between the two
projections of the keys would keep them from being merged when the model is used.  (DeepSeek-AI
2024, "DeepSeek-V2", section 2.1.)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.attention import CoreAttention
from pytest_trainsafe.reference_models.blocks.norm import RMSNorm
from pytest_trainsafe.reference_models.blocks.rotary import turn
from pytest_trainsafe.reference_models.config import DeepSeekConfig, kv_up_blocks, q_up_blocks


class LatentAttention(nn.Module):
    """Causal attention: maps [batch, sequence, hidden] and rotary tables to the same shape.

    The output of `linear_q_up_proj` has the elements of all heads without positions, then all
    rotated ones; that of `linear_kv_up_proj` all keys, then all values; that of
    `linear_kv_down_proj` the latent vector, then the rotated key that all heads share.
    """

    def __init__(self, config: DeepSeekConfig) -> None:
        super().__init__()
        self.config = config
        width, q_up, kv_up = config.hidden, q_up_blocks(config), kv_up_blocks(config)
        self.linear_q_down_proj = nn.Linear(width, config.q_rank, bias=False)
        self.q_layernorm: nn.Module = RMSNorm(config.q_rank)
        self.linear_q_up_proj: nn.Module = nn.Linear(config.q_rank, sum(q_up), bias=False)
        down = config.kv_rank + config.rope_dim
        self.linear_kv_down_proj = nn.Linear(width, down, bias=False)
        self.kv_layernorm: nn.Module = RMSNorm(config.kv_rank)
        self.linear_kv_up_proj: nn.Module = nn.Linear(config.kv_rank, sum(kv_up), bias=False)
        self.core_attention: nn.Module = CoreAttention(config.key_dim)
        self.linear_proj: nn.Module = nn.Linear(width, width, bias=False)

    def forward(self, hidden: Tensor, *tables: Tensor) -> Tensor:
        config = self.config
        up = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden)))
        down = self.linear_kv_down_proj(hidden)
        latent, rotated = down.split([config.kv_rank, config.rope_dim], dim=-1)
        key, value = self.linear_kv_up_proj(self.kv_layernorm(latent)).chunk(2, dim=-1)
        heads = key.shape[-1] // config.head_dim
        query, turning = up.split([heads * config.head_dim, heads * config.rope_dim], dim=-1)
        shared = turn(self.for_all_heads(rotated), *tables).repeat(1, 1, heads)
        query = self._joined(query, turn(turning, *tables))
        attended = self.core_attention(query, self._joined(key, shared), value)
        mixed: Tensor = self.linear_proj(attended)
        return mixed

    def for_all_heads(self, rotated: Tensor) -> Tensor:
        """Return the keys that all heads share, for the heads of this rank."""
        return rotated

    def _joined(self, plain: Tensor, rotated: Tensor) -> Tensor:
        """Return heads with the elements of both, [batch, sequence, heads * key_dim]."""
        heads, before = plain.shape[-1] // self.config.head_dim, plain.shape[:2]
        pair = [part.view(*before, heads, -1) for part in (plain, rotated)]
        return torch.cat(pair, dim=-1).flatten(2)
