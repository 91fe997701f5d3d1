"""The loss over ranks: cross entropy of logits split over the vocabulary, and its scale."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.collectives import all_reduce


def loss_to_differentiate(losses: Tensor, tokens_in_step: int, axes: Axes) -> Tensor:
    """This rank's term of the step's mean loss per token, for one micro-batch.

    `losses` are the losses of the micro-batch's tokens on this rank.  Their sum is divided by
    `tokens_in_step`, the tokens of all micro-batches and ranks, so that sums over micro-batches, dp
    and cp give the mean.  If gradients are averaged over dp and cp instead of summed, the divisor
    is the number of this rank's own tokens in the step.
    """
    ranks = axes.dp_cp.size if axes.bucketed else 1
    loss = losses.sum() / (tokens_in_step // ranks)
    if axes.planted("cp-loss-scaling"):
        # Correct only for a loss that is averaged over cp afterwards.
        loss = loss * axes.cp.size
    return loss


class VocabParallelCrossEntropy(nn.Module):
    """The cross entropy of each token, of logits that are split over the vocabulary.

    Maps logits [batch, sequence, vocabulary / tp] and targets [batch, sequence] to losses [batch,
    sequence].  Ranks exchange three numbers for each token, instead of a row of logits.  Computes
    in float32, or in float64 if the logits are float64.
    """

    def __init__(self, axes: Axes) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        return cast(Tensor, _CrossEntropy.apply(logits.to(wide), targets, self.axes.tp))  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, tp: Axis) -> Tensor:
        peak = all_reduce(logits.amax(dim=-1, keepdim=True), tp, dist.ReduceOp.MAX)
        logits = logits - peak
        columns = logits.shape[-1]
        columns_of_targets = (targets - tp.rank * columns)[..., None]
        foreign = (columns_of_targets < 0) | (columns_of_targets >= columns)
        columns_of_targets = columns_of_targets.masked_fill(foreign, 0)
        of_targets = logits.gather(-1, columns_of_targets).masked_fill(foreign, 0)
        of_targets = all_reduce(of_targets, tp)
        powers = logits.exp()
        total = all_reduce(powers.sum(dim=-1, keepdim=True), tp)
        ctx.save_for_backward(powers / total, columns_of_targets, foreign)
        return (total.log() - of_targets).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        probabilities, columns_of_targets, foreign = ctx.saved_tensors
        ours = (~foreign).to(probabilities.dtype)
        difference = probabilities.scatter_add(-1, columns_of_targets, -ours)
        return difference * gradient[..., None], None, None
