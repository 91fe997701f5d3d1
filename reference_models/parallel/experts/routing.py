"""Routing over ranks: counts and places are those of the whole micro-batch, over cp and sp."""

from __future__ import annotations

from torch import Tensor

from pytest_trainsafe.reference_models.blocks.routing import Balance, Capacity, Router
from pytest_trainsafe.reference_models.config import MoEConfig
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.collectives import all_gather, all_reduce, split
from pytest_trainsafe.reference_models.parallel.context.zigzag import put_in_order, take_part
from pytest_trainsafe.reference_models.parallel.marks import mark_sequence_parallel
from pytest_trainsafe.reference_models.parallel.regions import join_shards


class SequenceParallelRouter(Router):
    """A router that scores its rank's shard of the sequence, so its gradients are partial sums."""

    def __init__(self, config: MoEConfig, axes: Axes) -> None:
        super().__init__(config)
        if not axes.planted("moe-router-grads"):
            mark_sequence_parallel(self.weight)


class ParallelBalance(Balance):
    """The balancing loss, with counts summed over cp and, with sp, over the shards of the sequence.

    The result has all tokens of this cp rank; with sp, the results of the shards are joined.
    """

    def __init__(self, config: MoEConfig, axes: Axes) -> None:
        super().__init__(config)
        self.cp, self.shards = axes.cp, _shards(axes)

    def forward(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        return join_shards(super().forward(probabilities, chosen), 1, self.shards)

    def count(self, chosen: Tensor) -> Tensor:
        return all_reduce(all_reduce(super().count(chosen), self.shards), self.cp)


class ParallelCapacity(Capacity):
    """Gives out experts' places in the order of the whole sequence, which is spread over ranks."""

    def __init__(self, config: MoEConfig, axes: Axes) -> None:
        super().__init__(config)
        self.cp, self.shards = axes.cp, _shards(axes)

    def fits(self, chosen: Tensor) -> Tensor:
        there = all_gather(all_gather(chosen, 1, self.shards), 1, self.cp)
        fits = super().fits(put_in_order(there, self.cp))
        return split(take_part(fits, self.cp), 1, self.shards)


def _shards(axes: Axes) -> Axis:
    """The axis over which a cp rank's part of the sequence is split once more: tp with sp."""
    return axes.tp if axes.sp else Axis()
