"""The experts of a layer: one MLP each, applied to the tokens routed to it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.config import ExpertsConfig


class Experts(nn.ModuleDict):
    """Maps hidden states, choices and weights to the weighted sums of the chosen experts' outputs.

    The hidden states are [batch, sequence, hidden], choices and weights [batch, sequence, top_k].
    The key of an expert in this dict is its number.  A choice that is no expert's number adds
    nothing.  An expert without tokens is called as well, so that its gradients exist and are zero.
    """

    def __init__(self, config: ExpertsConfig) -> None:
        experts = {str(number): MLP(config, config.expert_ffn) for number in range(config.experts)}
        super().__init__(experts)

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        tokens, choices = hidden.flatten(0, 1), chosen.flatten(0, 1)
        said = torch.zeros_like(tokens, dtype=weights.dtype)
        for number, expert in self.items():
            token, choice = (choices == int(number)).nonzero(as_tuple=True)
            weight = weights.flatten(0, 1)[token, choice, None]
            said = said.index_add(0, token, weight * expert(tokens[token]))
        return said.to(hidden.dtype).view_as(hidden)
