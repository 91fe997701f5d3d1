"""RMSNorm: scales to a root mean square of one, without centring (Zhang and Sennrich 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-5


class RMSNorm(nn.Module):
    """Maps [..., hidden] to the same shape.

    Computed in float32, or in float64 if the input is float64; the output has the input's dtype.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPSILON)
        return scaled.to(hidden.dtype) * self.weight
