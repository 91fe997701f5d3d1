"""Attention over cp: each rank attends from its part of the sequence to the whole sequence.

The keys and values are all-gathered (Llama 3, section 3.3.2).  This is easier to follow than
passing them round a ring, and gives the same result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_trainsafe.reference_models.blocks.attention import CoreAttention, attend
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.context.zigzag import put_in_order, take_part
from pytest_trainsafe.reference_models.parallel.regions import gather_into


class ContextParallelAttention(CoreAttention):
    """Attention over all-gathered keys and values.

    Queries, keys, values and the result have the shape [batch, sequence / cp, heads * head_dim],
    where values and the result may have heads of another width.
    """

    def __init__(self, head_dim: int, axes: Axes) -> None:
        super().__init__(head_dim)
        self.cp = axes.cp

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # One message for both; its backward sums all ranks' gradients of each key and value.
        both = gather_into(torch.cat([key, value], dim=-1), 1, self.cp)
        widths = [key.shape[-1], value.shape[-1]]
        key, value = torch.split(put_in_order(both, self.cp), widths, dim=-1)
        positions = torch.arange(key.shape[1], device=key.device)
        return attend(query, key, value, self.head_dim, take_part(positions, self.cp, dim=0))
