"""A model that uses one of two branches in each micro-batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """A layer and two branches; `model(x, second)` is the mean squared output of one branch.

    `x` has the shape [n, 6]; `second` says whether the second branch is used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: Tensor, second: bool) -> Tensor:
        branch = self.second if second else self.first
        output: Tensor = branch(torch.tanh(self.enter(x)))
        return output.pow(2).mean()
