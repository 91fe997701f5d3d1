"""A mixture of experts instead of a layer's MLP: each token goes to a few of many experts.

(Shazeer et al. 2017; Lepikhin et al. 2020, "GShard"; Fedus et al. 2021, "Switch Transformers".)
"""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.experts import Experts
from pytest_trainsafe.reference_models.blocks.routing import Balance, Capacity, Router, Selection
from pytest_trainsafe.reference_models.config import MoEConfig


class MoELayer(nn.Module):
    """Maps [batch, sequence, hidden] to the same shape.

    After a call, the attribute `imbalance`, of shape [batch, sequence], has each token's part of
    the balancing loss.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.router: nn.Module = Router(config)
        self.selection = Selection(config)
        self.balance: nn.Module = Balance(config)
        self.capacity: nn.Module = Capacity(config)
        self.experts: nn.Module = Experts(config)
        self.imbalance: Tensor

    def forward(self, hidden: Tensor) -> Tensor:
        probabilities = self.router(hidden)
        chosen = self.selection(probabilities)
        self.imbalance = self.balance(probabilities, chosen)
        weights = probabilities.gather(-1, chosen)
        mixed: Tensor = self.experts(hidden, self.capacity(chosen), weights)
        return mixed
