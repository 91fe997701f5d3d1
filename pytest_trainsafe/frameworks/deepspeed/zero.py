"""Reads gradients, master copies and optimizer states under ZeRO stages 1 and 2.

Also reads those of DeepSpeed's bfloat16 optimizer.  All these optimizers keep the parameters of a
group in one flat buffer, of which each rank of a data parallel group owns one partition.
DeepSpeed's attribute `_hp_mapping` on a parameter says which elements of the parameter are in this
rank's partition; the attribute is None if none are (deepspeed/utils/tensor_fragment.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.core.layout import Flat
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.frameworks.deepspeed.groups import axes_of_group, unscaled
from pytest_trainsafe.record.adapter import RankTensor
from pytest_trainsafe.record.training.parameter_adapter import state_tensor

_SHUFFLED = (
    "with round_robin_gradients DeepSpeed does not say which part of the master copy a rank holds"
)


class FlatPartitions:
    """Reads the values that an optimizer with flat partitions holds for each parameter.

    `partitions` is the name of the optimizer's attribute that lists this rank's partitions.
    """

    def __init__(self, optimizer: Any, point: Point, partitions: str) -> None:
        self.optimizer = optimizer
        self.point = point
        self.partitions = partitions

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """The shape of the parameter itself."""
        return tuple(parameter.shape)

    def value(self, name: str, parameter: nn.Parameter) -> RankTensor:
        """The parameter itself."""
        return RankTensor(parameter)

    def main_grad(self, name: str, parameter: nn.Parameter) -> RankTensor | None:
        """This rank's range of the reduced gradient, divided by the loss scale.

        None if the parameter is not trained or has no gradient.
        """
        mapping, flat_range = self._mapping(parameter)
        if flat_range is None:
            return None
        if mapping is None:
            return RankTensor(parameter.new_empty(0), flat_range)
        try:
            grad = self._gradient(mapping, parameter)
        except (ValueError, KeyError, TypeError):
            return None  # no gradient was computed since the last step
        if grad is None:
            return None
        grad = grad.detach().reshape(-1)
        if (
            grad.numel() != flat_range.length
        ):  # the bfloat16 optimizer accumulates the whole gradient
            grad = grad.narrow(0, flat_range.offset, flat_range.length)
        return RankTensor(unscaled(grad, self.optimizer), flat_range)

    @property
    def _shuffled(self) -> bool:
        """Whether `_hp_mapping` may be wrong, because DeepSpeed reorders parameters in the buffer.

        See docs/upstream/deepspeed.md, round_robin_fragments.
        """
        return bool(getattr(self.optimizer, "round_robin_gradients", False))

    def _gradient(self, mapping: Any, parameter: nn.Parameter) -> torch.Tensor | None:
        """This rank's range of the reduced gradient; the whole gradient in the bfloat16 optimizer.

        The bfloat16 optimizer's own lists are read, because DeepSpeed 0.18.9 numbers its parameters
        by partition but looks them up by group.  Up to 0.13.2, `mapping` has no method that returns
        the gradient, so its dicts are read.
        """
        if hasattr(self.optimizer, "fp32_groups_gradients"):
            return self._whole_gradients.get(parameter)
        index = parameter._index_in_param_group  # type: ignore[attr-defined]
        if hasattr(mapping, "get_lp_grad_fragment"):
            found: torch.Tensor | None = mapping.get_lp_grad_fragment(index)
            return found
        grads = mapping.offload_gradient_dict if mapping.use_offload else mapping.gradient_dict
        of_group = grads[mapping.param_group_index]
        return None if of_group is None else of_group[index]

    @functools.cached_property
    def _whole_gradients(self) -> dict[nn.Parameter, torch.Tensor]:
        groups = zip(self.optimizer.bf16_groups, self.optimizer.fp32_groups_gradients, strict=True)
        return {
            parameter: grad
            for parameters, grads in groups
            for parameter, grad in zip(parameters, grads, strict=True)
        }

    def master(self, name: str, parameter: nn.Parameter) -> RankTensor | str | None:
        """This rank's range of the float32 master copy, or why it is unavailable.

        None if the parameter is not trained.
        """
        mapping, flat_range = self._mapping(parameter)
        if flat_range is None:
            return f"{name}: {_SHUFFLED}" if self._shuffled else None
        if mapping is None:
            return RankTensor(parameter.new_empty(0), flat_range)
        return RankTensor(mapping.hp_fragment.detach(), flat_range)

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, RankTensor | str]]:
        """Yields the name and this rank's range of each tensor in the inner optimizer's state.

        If a tensor does not have the size of the range, a text that says so replaces its range.
        """
        mapping, flat_range = self._mapping(parameter)
        if mapping is None or flat_range is None:
            return
        partition = getattr(self.optimizer, self.partitions)[mapping.param_group_index]
        address = mapping.hp_fragment_address
        for key, value in self.optimizer.optimizer.state.get(partition, {}).items():
            if not isinstance(value, torch.Tensor):
                continue
            if value.numel() == partition.numel():
                value = value.reshape(-1).narrow(0, address.start, address.numel)
            yield key, state_tensor(name, key, value, flat_range)

    def _mapping(self, parameter: nn.Parameter) -> tuple[Any, Flat | None]:
        """The parameter's `_hp_mapping` and the range of its elements that this rank holds.

        (None, empty range) if this rank holds nothing of the parameter.  (None, None) for a
        parameter that is not trained, and for all parameters if DeepSpeed's mappings are wrong.
        """
        if self._shuffled or not hasattr(parameter, "_hp_mapping"):
            return None, None
        mapping: Any = parameter._hp_mapping
        axes = axes_of_group(parameter._dp_group, self.point)  # type: ignore[attr-defined]
        shape = tuple(parameter.shape)
        if mapping is None:
            return None, Flat(0, 0, shape, axes)
        address = mapping.lp_fragment_address
        return mapping, Flat(address.start, address.numel, shape, axes)
