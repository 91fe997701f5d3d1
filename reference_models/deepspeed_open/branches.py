"""A model that takes one of two branches."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """`model(x, second)` is the mean squared output of one of two branches, for x [n, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: Tensor, second: bool) -> Tensor:
        branch = self.second if second else self.first
        output: Tensor = branch(torch.tanh(self.enter(x)))
        return output.pow(2).mean()
