"""Linear layers split over tp: by columns to enter a tensor-parallel region, by rows to leave it.

(Shoeybi et al. 2019, section 3.)  "Columns" and "rows" are those of the matrix A in x A.  torch
stores the transpose of A, so a column-parallel weight is split along dimension 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.marks import mark_sequence_parallel, mark_split
from pytest_trainsafe.reference_models.parallel.regions import (
    copy_into,
    gather_into,
    reduce_out,
    scatter_out,
)
from pytest_trainsafe.reference_models.parallel.tensor.overlap import overlapped_linear


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each tp rank computes some of the output features.

    Maps [batch, sequence, inputs] to [batch, sequence, outputs / tp].  With sp the input is this
    rank's shard of the sequence, and is gathered first.  `blocks` are the sizes of fused blocks of
    outputs that are split separately.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        axes: Axes,
        *,
        bias: bool = True,
        blocks: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.axes = axes
        features = outputs // axes.tp.size
        self.weight = nn.Parameter(torch.empty(features, inputs))
        self.bias = nn.Parameter(torch.empty(features)) if bias else None
        for parameter in self.parameters():
            mark_split(parameter, 0, blocks)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.axes.techniques.tp_overlap:
            return overlapped_linear(hidden, self.weight, self.bias, self.axes)
        return F.linear(self.enter(hidden), self.weight, self.bias)

    def enter(self, hidden: Tensor) -> Tensor:
        """The input of every rank: the whole sequence; its gradient is summed over tp."""
        if self.axes.sp:
            return gather_into(hidden, 1, self.axes.tp)
        return copy_into(hidden, self.axes.tp)


class RowParallelLinear(nn.Module):
    """A linear layer of which each tp rank has some of the input features.

    Maps [batch, sequence, inputs / tp] to [batch, sequence, outputs].  With sp the output is this
    rank's shard of the sequence.
    """

    def __init__(self, inputs: int, outputs: int, axes: Axes, *, bias: bool = True) -> None:
        super().__init__()
        self.axes = axes
        self.weight = nn.Parameter(torch.empty(outputs, inputs // axes.tp.size))
        mark_split(self.weight, 1)
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        if self.bias is not None and axes.sp:
            mark_sequence_parallel(self.bias)

    def forward(self, features: Tensor) -> Tensor:
        # Add the bias once, after the sum: added to every rank's term, it would count tp times.
        hidden = self.leave(F.linear(features, self.weight))
        return hidden if self.bias is None else hidden + self.bias

    def leave(self, term: Tensor) -> Tensor:
        """The sum of the ranks' terms, or with sp this rank's shard of it."""
        if self.axes.sp:
            return scatter_out(term, 1, self.axes.tp)
        return reduce_out(term, self.axes.tp)
