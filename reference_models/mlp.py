"""The feed-forward half of a layer: widen four times, GELU, narrow again."""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.config import GPTConfig


class MLP(nn.Module):
    """[batch, sequence, hidden] to the same shape."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.linear_fc1: nn.Module = nn.Linear(config.hidden, 4 * config.hidden)
        self.activation_func = nn.GELU()
        self.linear_fc2: nn.Module = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        narrowed: Tensor = self.linear_fc2(self.activation_func(self.linear_fc1(hidden)))
        return narrowed
