"""The feed-forward half of a layer: two linear layers with an activation function between them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe.reference_models.config import AnyConfig, fc1_blocks


class MLP(nn.Module):
    """Maps [..., hidden] to the same shape, with GELU between two layers, or SwiGLU if gated.

    The width between the layers is `ffn`, or that of the configuration.
    """

    def __init__(self, config: AnyConfig, ffn: int | None = None) -> None:
        super().__init__()
        width, bias, inner = config.hidden, config.bias, fc1_blocks(config, ffn)
        self.linear_fc1: nn.Module = nn.Linear(width, sum(inner), bias=bias)
        self.activation_func = SwiGLU() if config.gated else nn.GELU()
        self.linear_fc2: nn.Module = nn.Linear(inner[0], width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        narrowed: Tensor = self.linear_fc2(self.activation_func(self.linear_fc1(hidden)))
        return narrowed


class SwiGLU(nn.Module):
    """Maps [..., 2 * width], all gates and then all values, to [..., width] (Shazeer 2020)."""

    def forward(self, gates_and_values: Tensor) -> Tensor:
        gates, values = gates_and_values.chunk(2, dim=-1)
        return F.silu(gates) * values
