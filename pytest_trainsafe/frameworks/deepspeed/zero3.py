"""Reads parameters, gradients, master copies and optimizer states under ZeRO stage 3.

ZeRO stage 3 flattens and pads each parameter, and splits it evenly over a group of ranks.  Rank r
of n holds elements [r·k, (r+1)·k) of the flattened parameter in `ds_tensor`, with padding
at the end; the parameter itself is empty unless it is gathered
(deepspeed/runtime/zero/partition_parameters.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.core.layout import Flat
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.frameworks.deepspeed.groups import axes_of_group, unscaled
from pytest_trainsafe.record.adapter import RankTensor
from pytest_trainsafe.record.training.parameter_adapter import state_tensor

#: The optimizer's attribute with this rank's part of each reduced gradient, by `ds_id`.
_GRADIENTS = "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition"


class PartitionedParameters:
    """Reads partitioned parameters and their optimizer on one rank."""

    def __init__(self, optimizer: Any, point: Point) -> None:
        self.optimizer = optimizer
        self.point = point

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """The shape of the whole parameter, even while it is partitioned."""
        return tuple(getattr(parameter, "ds_shape", parameter.shape))

    def value(self, name: str, parameter: nn.Parameter) -> RankTensor:
        """This rank's part of the parameter; the whole parameter if it is gathered."""
        shape = self.shape(parameter)
        if tuple(parameter.shape) == shape:
            return RankTensor(parameter)
        flat_range = self._flat_range(parameter)
        partition = parameter.ds_tensor  # type: ignore[attr-defined]
        return RankTensor(
            partition.detach().reshape(-1).narrow(0, 0, flat_range.length), flat_range
        )

    def main_grad(self, name: str, parameter: nn.Parameter) -> RankTensor | None:
        """This rank's range of the reduced gradient, divided by the loss scale.

        None if the parameter is not trained or has no gradient.
        """
        place = self._place(parameter)
        if place is None:
            return None
        group, offset, count = place
        if getattr(self.optimizer, "offload_optimizer", False):
            grad = self.optimizer.fp32_partitioned_groups_flat[group].grad
            grad = None if grad is None else grad.narrow(0, offset, count)
        else:
            grad = vars(self.optimizer)[_GRADIENTS].get(parameter.ds_id)  # type: ignore[attr-defined]
        if grad is None:
            return None
        flat_range = self._flat_range(parameter)
        own_part = grad.detach().reshape(-1).narrow(0, 0, flat_range.length)
        return RankTensor(unscaled(own_part, self.optimizer), flat_range)

    def master(self, name: str, parameter: nn.Parameter) -> RankTensor | str | None:
        """This rank's range of the float32 master copy, or why it is unavailable.

        None if the parameter is not trained.
        """
        place = self._place(parameter)
        if place is None:
            return None
        group, offset, _ = place
        flat_range = self._flat_range(parameter)
        partition = self.optimizer.fp32_partitioned_groups_flat[group]
        if partition is None or not partition.numel():
            return f"the master copy of {name} is not in memory"
        return RankTensor(partition.detach().narrow(0, offset, flat_range.length), flat_range)

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, RankTensor | str]]:
        """Yields, by name, this rank's range of each tensor in the inner optimizer's state."""
        place = self._place(parameter)
        if place is None:
            return
        group, offset, _ = place
        flat_range = self._flat_range(parameter)
        partition = self.optimizer.fp32_partitioned_groups_flat[group]
        for key, value in self.optimizer.optimizer.state.get(partition, {}).items():
            if not isinstance(value, torch.Tensor):
                continue
            if value.numel() == partition.numel():
                value = value.reshape(-1).narrow(0, offset, flat_range.length)
            yield key, state_tensor(name, key, value, flat_range)

    def _place(self, parameter: nn.Parameter) -> tuple[int, int, int] | None:
        """The parameter's place in the optimizer's flat buffers: group, offset, length.

        None if the parameter is not trained.
        """
        if not hasattr(parameter, "ds_id"):
            return None
        position = self.optimizer.grad_position
        place: tuple[int, int, int] | None = position.get(self.optimizer.get_param_id(parameter))
        return place

    def _flat_range(self, parameter: nn.Parameter) -> Flat:
        held: Any = parameter
        each = held.ds_tensor.ds_numel if hasattr(held.ds_tensor, "ds_numel") else None
        each = each or held.ds_tensor.numel()
        start = each * dist.get_rank(held.ds_process_group)
        length = max(0, min(each, held.ds_numel - start))
        axes = axes_of_group(held.ds_process_group, self.point)
        return Flat(min(start, held.ds_numel), length, tuple(held.ds_shape), axes)
