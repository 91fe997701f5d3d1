"""A mixture of experts with shared experts, which all tokens use, beside the routed ones.

(Dai et al. 2024, "DeepSeekMoE"; DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2.)
"""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.experts import Experts
from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.blocks.routing import BiasedSelection, SigmoidRouter
from pytest_trainsafe.reference_models.config import DeepSeekConfig


class DeepSeekMoE(nn.Module):
    """Maps [batch, sequence, hidden] to the same shape.

    Several shared experts are one MLP of their total width, which computes the same.
    """

    def __init__(self, config: DeepSeekConfig) -> None:
        super().__init__()
        self.router: nn.Module = SigmoidRouter(config)
        self.selection = BiasedSelection(config)
        self.weights: nn.Module = Weights(config)
        self.experts: nn.Module = Experts(config)
        self.shared_experts = MLP(config, config.shared * config.expert_ffn)

    def forward(self, hidden: Tensor) -> Tensor:
        scores = self.router(hidden)
        chosen = self.selection(scores)
        self.selection.count(chosen)
        routed: Tensor = self.experts(hidden, chosen, self.weights(scores, chosen))
        shared: Tensor = self.shared_experts(hidden)
        return routed + shared


class Weights(nn.Module):
    """Maps scores and choices to the weights of the chosen experts, [batch, sequence, top_k].

    They are proportional to the scores, without biases, and add up to `route_scale`.
    """

    def __init__(self, config: DeepSeekConfig) -> None:
        super().__init__()
        self.scale = config.route_scale

    def forward(self, scores: Tensor, chosen: Tensor) -> Tensor:
        own = scores.gather(-1, chosen)
        return self.scale * own / own.sum(dim=-1, keepdim=True)
