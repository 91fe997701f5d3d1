"""Tied embeddings over a pipeline: the group of the first and the last stage.

Both stages hold a copy of the table.  The sum of the two copies' gradients is the gradient of the
table (Megatron-LM's embedding group).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch.distributed as dist

from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def with_embedding_group(ctx: Context, axes: Axes) -> Axes:
    """The axes, with `embedding` set on ranks of the first and the last stage.

    Must be called on every rank, because it creates process groups.
    """
    pp = axes.pp
    if pp.size == 1:
        return axes
    over_pp = ctx.mesh.mesh.flatten(1).T.tolist()  # pp is the mesh's first dimension
    pairs = [[ranks[0], ranks[-1]] for ranks in over_pp]
    group, _ = dist.new_subgroups_by_enumeration(pairs)  # type: ignore[no-untyped-call]
    if pp.rank not in (0, pp.size - 1):
        return axes
    return dataclasses.replace(axes, embedding=Axis(2, int(pp.rank > 0), group))
