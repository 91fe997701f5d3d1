"""The optimizer states of torch's ZeroRedundancyOptimizer, which each rank has for some parameters.

One rank of the optimizer's process group updates a parameter, and sends it to the others.  So its
state is a part that is the whole tensor there, and is empty elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from pytest_trainsafe.core.layout import Flat
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.frameworks.torch_native.wrappers import varying
from pytest_trainsafe.record.adapter import RankTensor
from pytest_trainsafe.record.training.optimizer import levels, owned_by
from pytest_trainsafe.record.training.parameter_adapter import (
    AttributeParameterAdapter,
    state_tensor,
)

_MODULE = "torch.distributed.optim.zero_redundancy_optimizer"


def sharded_states(optimizer: Any, point: Point) -> ShardedStates | None:
    """The parameter adapter for an optimizer that is, or wraps, ZeroRedundancyOptimizers."""
    module = sys.modules.get(_MODULE)
    if module is None:  # then no object is an instance of the class
        return None
    axes: dict[int, tuple[str, ...]] = {}
    for level in levels(optimizer):
        if isinstance(level, module.ZeroRedundancyOptimizer):
            over = varying(dist.get_process_group_ranks(level.process_group), point)
            axes |= dict.fromkeys(owned_by(level), over or ())
    return ShardedStates(point, optimizer, axes) if any(axes.values()) else None


class ShardedStates(AttributeParameterAdapter):
    """Finds states that one rank has along the axes that `axes` maps the id of a parameter to."""

    def __init__(self, point: Point, optimizer: Any, axes: dict[int, tuple[str, ...]]) -> None:
        super().__init__(point.sizes, optimizer)
        self._axes = axes

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, RankTensor | str]]:
        """Yields the states of the parameter with their keys; none if another rank updates it."""
        axes = self._axes.get(id(parameter), ())
        whole = Flat(0, parameter.numel(), tuple(parameter.shape), axes)
        for key, held in super().states(name, parameter):
            if axes and isinstance(held, RankTensor) and held.flat_range is None:
                yield key, state_tensor(name, key, held.tensor, whole)
            else:
                yield key, held
