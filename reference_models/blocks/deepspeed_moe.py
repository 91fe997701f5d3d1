"""DeepSpeed's MoE layer, which returns only its output here.

Imported in ranks that train with DeepSpeed.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.moe.layer import MoE
from torch import nn


class Routed(MoE):  # type: ignore[misc]
    """Top-1 routing without token dropping or random token selection."""

    def __init__(self, hidden: int, expert: nn.Module, experts: int, ranks: int) -> None:
        super().__init__(
            hidden,
            expert,
            num_experts=experts,
            ep_size=ranks,
            k=1,
            min_capacity=0,
            drop_tokens=False,
            use_rts=False,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, hidden] to the same shape; the gate's auxiliary loss is dropped."""
        given: Any = super().forward(x)
        out: torch.Tensor = given[0]
        return out
