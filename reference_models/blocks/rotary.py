"""Rotary positions: queries and keys are rotated by angles proportional to their positions.

The product of a query and a key then depends only on the distance of their positions (Su et al.
2021, "RoFormer").
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.attention import SelfAttention

#: The slowest pair of elements of a head rotates once in about 2 pi * BASE positions.
BASE = 10_000.0


class RotaryTables(nn.Module):
    """Maps positions [1, sequence] to the cosines and sines of the angles of `width` elements.

    Both results have the shape [1, sequence, pairs]; all layers share them.  They are float64 in
    every model: in bfloat16, adjacent numbers above 1024 are at least 8 apart, and an angle rounded
    by several radians is useless.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        even = torch.arange(0, self.width, 2, dtype=torch.float64, device=positions.device)
        angles = positions[..., None] * BASE ** -(even / self.width)
        return angles.cos(), angles.sin()


class RotaryAttention(SelfAttention):
    """Self-attention with rotated queries and keys."""

    def forward(self, hidden: Tensor, *tables: Tensor) -> Tensor:
        cosine, sine = tables
        query, key, value = self.project(hidden)
        query, key = turn(query, cosine, sine), turn(key, cosine, sine)
        mixed: Tensor = self.linear_proj(self.core_attention(query, key, value))
        return mixed


def turn(tensor: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate pairs of elements in each head of a tensor [batch, sequence, heads * width].

    Element i of a head is paired with element i + width / 2.  Computed in float32, or in float64
    if the tensor is float64; the result has the tensor's dtype.
    """
    wide = torch.promote_types(tensor.dtype, torch.float32)
    pairs = tensor.to(wide).reshape(*tensor.shape[:2], -1, 2, cosine.shape[-1])
    first, second = pairs.unbind(-2)
    cosine, sine = (table[..., None, :].to(wide) for table in (cosine, sine))
    turned = torch.stack([first * cosine - second * sine, second * cosine + first * sine], dim=-2)
    return turned.flatten(-3).to(tensor.dtype)
