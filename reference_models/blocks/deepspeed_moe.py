"""DeepSpeed's MoE layer, giving its output alone.  Imported in ranks that train by DeepSpeed."""

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
        """[batch, sequence, hidden] to the same; the gate's own loss is left out."""
        given: Any = super().forward(x)
        out: torch.Tensor = given[0]
        return out
