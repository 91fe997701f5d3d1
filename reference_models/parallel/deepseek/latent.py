"""Latent attention over tp: heads are divided, and what they share is on every rank.

Each rank projects the hidden states to the latent vectors and to the key that all heads share, and
from these to its own heads.  So their gradients are sums over tp.  With sp, the projections to
latent vectors see a rank's shard of the sequence, which is gathered afterwards.
"""

from __future__ import annotations

from torch import Tensor

from pytest_trainsafe.reference_models.blocks.latent import LatentAttention
from pytest_trainsafe.reference_models.config import DeepSeekConfig, kv_up_blocks, q_up_blocks
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.marks import mark_sequence_parallel
from pytest_trainsafe.reference_models.parallel.regions import copy_into, gather_into, join_shards
from pytest_trainsafe.reference_models.parallel.tensor.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
)
from pytest_trainsafe.reference_models.parallel.tensor.norm import sequence_parallel


class ParallelLatentAttention(LatentAttention):
    """Latent attention of this rank's heads."""

    def __init__(self, config: DeepSeekConfig, axes: Axes) -> None:
        super().__init__(config)
        self.axes, width = axes, config.hidden
        q_up, kv_up = q_up_blocks(config), kv_up_blocks(config)
        self.linear_q_up_proj = ColumnParallelLinear(
            config.q_rank,
            sum(q_up),
            axes,
            bias=False,
            # The bug: rows are divided as if each head's were together.
            blocks=() if axes.planted("mla-rope-blocks") else q_up,
        )
        enters = _NotReduced if axes.planted("mla-latent-grads") else ColumnParallelLinear
        self.linear_kv_up_proj = enters(config.kv_rank, sum(kv_up), axes, bias=False, blocks=kv_up)
        self.linear_proj = RowParallelLinear(width, width, axes, bias=False)
        if axes.sp:
            self.q_layernorm = sequence_parallel(self.q_layernorm, config.q_rank, axes)
            self.kv_layernorm = sequence_parallel(self.kv_layernorm, config.kv_rank, axes)
            for linear in (self.linear_q_down_proj, self.linear_kv_down_proj):
                for weight in linear.parameters():
                    mark_sequence_parallel(weight)

    def for_all_heads(self, rotated: Tensor) -> Tensor:
        tp = self.axes.tp
        if self.axes.planted("mla-shared-key-grads"):
            # The bug: the gradient that is passed on is that of this rank's heads only.
            return join_shards(rotated, 1, tp) if self.axes.sp else rotated
        return gather_into(rotated, 1, tp) if self.axes.sp else copy_into(rotated, tp)


class _NotReduced(ColumnParallelLinear):
    """A planted bug: the ranks' gradients of the input are not summed."""

    def enter(self, hidden: Tensor) -> Tensor:
        return join_shards(hidden, 1, self.axes.tp) if self.axes.sp else hidden
