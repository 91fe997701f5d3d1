"""The module that predicts a further token over ranks: cut like the model around it."""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.prediction import Following, MultiTokenPrediction
from pytest_trainsafe.reference_models.config import DeepSeekConfig
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.collectives import all_gather
from pytest_trainsafe.reference_models.parallel.context.zigzag import put_in_order, take_part
from pytest_trainsafe.reference_models.parallel.marks import mark_sequence_parallel
from pytest_trainsafe.reference_models.parallel.tensor.embedding import (
    SequenceParallelTokenEmbedding,
    VocabParallelEmbedding,
)
from pytest_trainsafe.reference_models.parallel.tensor.linear import ColumnParallelLinear
from pytest_trainsafe.reference_models.parallel.tensor.loss import VocabParallelCrossEntropy
from pytest_trainsafe.reference_models.parallel.tensor.norm import sequence_parallel


class ParallelPrediction(MultiTokenPrediction):
    """The module of a further token on this rank, for its part of the sequence."""

    def __init__(self, config: DeepSeekConfig, layer: nn.Module, axes: Axes) -> None:
        super().__init__(config, layer)
        self.axes, width = axes, config.hidden
        if axes.sp:
            self.embedding = SequenceParallelTokenEmbedding(config, axes)
            self.enorm = sequence_parallel(self.enorm, width, axes)
            self.hnorm = sequence_parallel(self.hnorm, width, axes)
            self.final_layernorm = sequence_parallel(self.final_layernorm, width, axes)
            for weight in self.eh_proj.parameters():
                mark_sequence_parallel(weight)
        if axes.tp.size > 1:
            self.embedding.word_embeddings = VocabParallelEmbedding(config, axes)
            self.output_layer = ColumnParallelLinear(width, config.vocabulary, axes, bias=False)
            self.cross_entropy = VocabParallelCrossEntropy(axes)
        if axes.cp.size > 1 and not axes.planted("mtp-shift-local"):
            self.following = ContextParallelFollowing(axes)

    def weighted(self, losses: Tensor) -> Tensor:
        losses = super().weighted(losses)
        if self.axes.planted("mtp-loss-scale"):
            # The bug: the gradient is divided by cp, as if it were multiplied elsewhere.
            own = losses / self.axes.cp.size
            losses = losses.detach() + own - own.detach()
        return losses


class ContextParallelFollowing(Following):
    """The targets of the next position, which another rank may have."""

    def __init__(self, axes: Axes) -> None:
        super().__init__()
        self.cp = axes.cp

    def forward(self, targets: Tensor) -> Tensor:
        whole = put_in_order(all_gather(targets, 1, self.cp), self.cp)
        return take_part(super().forward(whole), self.cp)
