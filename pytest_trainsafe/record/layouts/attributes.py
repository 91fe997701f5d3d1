"""Layouts from attributes on parameters, in Megatron-LM's convention.

Called by `model/parameter_layout.py`.  Megatron-LM sets `tensor_model_parallel`, `partition_dim`
and `partition_stride` in `set_tensor_model_parallel_attributes` (megatron/core/tensor_parallel/
layers.py).  pytest-trainsafe defines two more attributes: `partition_blocks`, the logical sizes of
fused blocks, because Megatron-LM before 0.16 leaves the stride of gated projections at 1; and
`expert_tp_size`, because Megatron-LM's own marks of experts' weights do not tell their
tensor-parallel size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_trainsafe.core.indices import LayoutError, nested
from pytest_trainsafe.core.layout import REPLICATED, Layout, Sizes


def attribute_layout(
    name: str, parameter: Any, sizes: Sizes, axes: Sequence[str] = ("tp",)
) -> Layout | None:
    """The layout that a parameter's attributes declare; None without the attributes.

    `axes` are the axes of tensor parallelism that split this parameter, outermost first.
    Raises LayoutError if the attributes contradict the parameter's shape.
    """
    marked = getattr(parameter, "tensor_model_parallel", None)
    if marked is None:
        return None
    tp = math.prod(sizes[axis] for axis in axes)
    if not marked or tp == 1:
        return REPLICATED
    dim = getattr(parameter, "partition_dim", -1)
    if not isinstance(dim, int) or not 0 <= dim < parameter.dim():
        raise LayoutError(
            f"{name} is marked tensor_model_parallel and has partition_dim {dim!r}; "
            f"partition_dim must be from 0 to {parameter.dim() - 1}"
        )
    length = parameter.shape[dim] * tp
    blocks = tuple(getattr(parameter, "partition_blocks", ()) or ())
    stride = getattr(parameter, "partition_stride", 1)
    if not blocks and stride > 1:
        blocks = (length // stride,) * stride
    if blocks and sum(blocks) != length:
        raise LayoutError(
            f"{name} has {length} rows in dimension {dim}, over all {tp} tp ranks, but its blocks "
            f"{list(blocks)} (from partition_blocks, or partition_stride {stride}) add up to "
            f"{sum(blocks)}; they must add up to {length}"
        )
    return nested(dim, axes, sizes, blocks)
