"""Interprets DeepSpeed's process groups and loss scales, for its parameter adapters."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from pytest_trainsafe.core.point import Point


def axes_of_group(group: Any, point: Point) -> tuple[str, ...]:
    """The mesh axes along which the ranks of a process group differ; `dp` for a single rank."""
    if group is None or not dist.is_initialized():
        return ("dp",)
    return point.axes_between(dist.get_process_group_ranks(group)) or ("dp",)


def unscaled(grad: torch.Tensor, optimizer: Any) -> torch.Tensor:
    """The gradient divided by the optimizer's loss scale, in float32; unchanged if that is 1."""
    scale = getattr(optimizer, "loss_scale", 1.0)
    return grad if float(scale) == 1.0 else grad.float() / float(scale)
