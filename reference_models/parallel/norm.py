"""Layer norms under sequence parallelism: each rank normalises its shard of the sequence.

(Korthikanti et al. 2022, section 4.2.2.)
"""

from __future__ import annotations

from torch import nn

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.marks import mark_sequence_parallel


class SequenceParallelLayerNorm(nn.LayerNorm):
    """A LayerNorm whose weights are on all tp ranks, and whose gradients are partial sums there."""

    def __init__(self, hidden: int, axes: Axes) -> None:
        super().__init__(hidden)
        if axes.planted("sp-layernorm-grads"):
            return  # Without the mark, nothing later knows that a sum is due.
        for parameter in self.parameters():
            mark_sequence_parallel(parameter)
