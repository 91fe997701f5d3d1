"""Routing of tokens to experts when cp and sp divide the sequences of a micro-batch over ranks.

Each expert's choices are counted over the whole micro-batch, and its capacity is given to the
tokens of the whole micro-batch in order, as on a single device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.routing import Balance, BiasedSelection, Capacity
from pytest_trainsafe.reference_models.config import MoEConfig
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.collectives import all_gather, all_reduce, split
from pytest_trainsafe.reference_models.parallel.context.zigzag import put_in_order, take_part
from pytest_trainsafe.reference_models.parallel.marks import mark_sequence_parallel
from pytest_trainsafe.reference_models.parallel.regions import join_shards


def score_a_shard(router: nn.Module, axes: Axes) -> None:
    """Makes the gradients of a router partial sums, because it scores its rank's shard only."""
    if not axes.planted("moe-router-grads"):
        for parameter in router.parameters():
            mark_sequence_parallel(parameter)


@torch.no_grad()
def update_biases(model: nn.Module, axes: Axes) -> None:
    """Updates the biases of all routers after a step, in which each rank chose for its own tokens.

    The choices are counted over all ranks of dp and cp, and with sp also over those of tp.
    """
    selections = [each for each in model.modules() if isinstance(each, BiasedSelection)]
    if not selections:
        return
    counts = torch.stack([each.counts for each in selections])
    counts = all_reduce(all_reduce(counts, axes.dp), axes.cp)
    if not axes.planted("router-bias-counts"):
        counts = all_reduce(counts, _shards(axes))
    for selection, own in zip(selections, counts, strict=True):
        selection.update(own)


class ParallelBalance(Balance):
    """The balancing loss, with each expert's choices counted over cp and, with sp, also over tp.

    The result [batch, sequence / cp] has the part of the loss of each token of this cp rank.  With
    sp, each tp rank computes the parts of its shard, and the shards' parts are all-gathered.
    """

    def __init__(self, config: MoEConfig, axes: Axes) -> None:
        super().__init__(config)
        self.cp, self.shards = axes.cp, _shards(axes)

    def forward(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        return join_shards(super().forward(probabilities, chosen), 1, self.shards)

    def count(self, chosen: Tensor) -> Tensor:
        return all_reduce(all_reduce(super().count(chosen), self.shards), self.cp)


class ParallelCapacity(Capacity):
    """Gives experts' free places to tokens in the order of the whole sequence.

    The choices of all ranks are gathered; each rank returns those of its own tokens.
    """

    def __init__(self, config: MoEConfig, axes: Axes) -> None:
        super().__init__(config)
        self.cp, self.shards = axes.cp, _shards(axes)

    def fits(self, chosen: Tensor) -> Tensor:
        there = all_gather(all_gather(chosen, 1, self.shards), 1, self.cp)
        fits = super().fits(put_in_order(there, self.cp))
        return split(take_part(fits, self.cp), 1, self.shards)


def _shards(axes: Axes) -> Axis:
    """Returns the axis that splits a cp rank's part of the sequence: tp if sp is on.

    Without sp, the axis has one rank.
    """
    return axes.tp if axes.sp else Axis()
