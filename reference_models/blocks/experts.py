"""The experts of a layer: one MLP each, applied to the tokens routed to it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.config import MoEConfig


class Experts(nn.ModuleDict):
    """Hidden states, choices and weights to the weighted sum of the chosen experts' outputs.

    Hidden is [batch, sequence, hidden], the others [batch, sequence, top_k].  An expert's key is
    its number; a choice of a number that no expert has adds nothing.  An expert without tokens is
    called all the same, so that it has gradients: zeros.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__({str(number): MLP(config) for number in range(config.experts)})

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        tokens, choices = hidden.flatten(0, 1), chosen.flatten(0, 1)
        said = torch.zeros_like(tokens, dtype=weights.dtype)
        for number, expert in self.items():
            token, choice = (choices == int(number)).nonzero(as_tuple=True)
            weight = weights.flatten(0, 1)[token, choice, None]
            said = said.index_add(0, token, weight * expert(tokens[token]))
        return said.to(hidden.dtype).view_as(hidden)
