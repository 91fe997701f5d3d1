"""A mixture of experts with shared experts over ranks.

Routed experts are divided over ep and tp as in every mixture; shared ones over tp like any MLP.
"""

from __future__ import annotations

from torch import Tensor

from pytest_trainsafe.reference_models.blocks.deepseek_moe import DeepSeekMoE, Weights
from pytest_trainsafe.reference_models.blocks.routing import BiasedSelection
from pytest_trainsafe.reference_models.config import DeepSeekConfig
from pytest_trainsafe.reference_models.parallel.apply import cut_mlp
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.experts.experts import ParallelExperts
from pytest_trainsafe.reference_models.parallel.experts.routing import score_a_shard
from pytest_trainsafe.reference_models.parallel.regions import reduce_out
from pytest_trainsafe.reference_models.parallel.tensor.linear import RowParallelLinear


def apply_to_mixture(mlp: DeepSeekMoE, config: DeepSeekConfig, axes: Axes) -> None:
    """Replaces those modules of one mixture of experts that the axes affect."""
    if axes.sp:
        score_a_shard(mlp.router, axes)
    if axes.tp.size > 1:
        width = config.shared * config.expert_ffn
        cut_mlp(mlp.shared_experts, config, axes, width)
        if axes.planted("shared-expert-twice"):
            mlp.shared_experts.linear_fc2 = _ReducedTwice(width, config.hidden, axes, bias=False)
    if axes.tp.size > 1 or axes.ep.size > 1:
        mlp.experts = ParallelExperts(config, axes)
        if axes.planted("router-bias-weights"):
            mlp.weights = _BiasedWeights(config, mlp.selection)


class _ReducedTwice(RowParallelLinear):
    """A planted bug: the sum over tp, which each rank has already, is summed again."""

    def leave(self, term: Tensor) -> Tensor:
        return reduce_out(super().leave(term), self.axes.tp)


class _BiasedWeights(Weights):
    """A planted bug: the bias is part of the weights, and not of the choice only."""

    def __init__(self, config: DeepSeekConfig, selection: BiasedSelection) -> None:
        super().__init__(config)
        self.bias_of = (selection,)  # in a tuple, so that it is not a submodule of this one, too

    def forward(self, scores: Tensor, chosen: Tensor) -> Tensor:
        (selection,) = self.bias_of
        return super().forward(scores + selection.bias, chosen)
