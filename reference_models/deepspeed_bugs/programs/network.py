"""A small network with normalisation and residuals, and its micro-batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 16


class Layer(nn.Module):
    """A residual layer.  Its contribution is divided by `id`, its number counted from 1."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.id = number
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        added: Tensor = F.gelu(self.linear(self.norm(hidden)))
        return hidden + added / self.id


class Network(nn.Module):
    """Residual layers; `network(inputs, targets)` returns the mean squared error, in float32."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList(Layer(1 + number) for number in range(layers))
        self.leave = nn.Linear(WIDTH, 4)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for layer in self.layers:
            hidden = layer(hidden)
        return F.mse_loss(self.leave(hidden).float(), targets.float())


def micro_batch(step: int, index: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the inputs [6, 8] and targets [6, 4] of micro-batch `index` of a step, in float32.

    The micro-batches of a step are numbered over all dp ranks.
    """
    draw = torch.Generator().manual_seed(1_000_003 * seed + 1000 * step + index)
    inputs = torch.randn(6, 8, generator=draw, dtype=torch.float32)
    return inputs, 2 * torch.randn(6, 4, generator=draw, dtype=torch.float32)
