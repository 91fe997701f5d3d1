"""Locates a parameter's value, gradient, master copy and optimizer state by its attributes.

Used by the parameter recorder.  `AttributeParameterAdapter` reads Megatron-LM's attributes and also
suits plain PyTorch; adapters of frameworks that store values elsewhere have implementations of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.core.layout import Flat, Sizes
from pytest_trainsafe.record.adapter import RankTensor
from pytest_trainsafe.record.layouts.flat_ranges import optimizer_range
from pytest_trainsafe.record.tensors import local_values, name_in_ledger
from pytest_trainsafe.record.training.masters import Masters
from pytest_trainsafe.record.training.optimizer import states


class AttributeParameterAdapter:
    """Uses `main_grad`, `main_param` and `main_param_range` on parameters that have them."""

    def __init__(self, sizes: Sizes, optimizer: Any) -> None:
        self.sizes = sizes
        self.optimizer = optimizer

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """The shape of the parameter itself."""
        return tuple(parameter.shape)

    def value(self, name: str, parameter: nn.Parameter) -> RankTensor:
        """The parameter itself."""
        return RankTensor(parameter)

    def main_grad(self, name: str, parameter: nn.Parameter) -> RankTensor | None:
        """The attribute `main_grad`, or `grad` if there is no `main_grad`; None if neither exists.

        If the parameter has a `main_param_range`, the result has only the elements of the gradient
        in this range.
        """
        grad = getattr(parameter, "main_grad", None)
        if grad is None:
            grad = parameter.grad
        if grad is None:
            return None
        name_in_ledger(grad, f"{name}.grad")
        flat_range = optimizer_range(name, parameter, self.sizes)
        if flat_range is None:
            return RankTensor(grad)
        own_part = local_values(grad).reshape(-1)
        if own_part.numel() != flat_range.length:
            own_part = own_part.narrow(0, flat_range.offset, flat_range.length)
        return RankTensor(own_part, flat_range)

    def master(self, name: str, parameter: nn.Parameter) -> RankTensor | str | None:
        """The attribute `main_param`, flattened if the parameter has a `main_param_range`.

        Without a `main_param`, returns an empty tensor if there is a `main_param_range` and it is
        empty, and None otherwise.  Returns a str if the `main_param` does not have the parameter's
        shape and there is no `main_param_range`.
        """
        master = getattr(parameter, "main_param", None)
        flat_range = optimizer_range(name, parameter, self.sizes)
        if not isinstance(master, torch.Tensor):
            empty = flat_range is not None and not flat_range.length
            return RankTensor(parameter.new_empty(0), flat_range) if empty else None
        if flat_range is not None:
            return RankTensor(local_values(master).reshape(-1), flat_range)
        if master.shape == parameter.shape:
            return RankTensor(master)
        return f"the main_param of {name} does not have the parameter's shape"

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, RankTensor | str]]:
        """Yields the optimizer's state tensors for the parameter or its `main_param`, with keys.

        If the `main_param` is a view of a flat tensor that the optimizer updates, they are its part
        of the tensor's states.
        """
        flat_range = optimizer_range(name, parameter, self.sizes)
        own = [*states(self.optimizer, parameter)]
        for key, value in own or Masters(self.optimizer).states(parameter):
            yield key, state_tensor(name, key, value, flat_range)


def state_tensor(
    name: str, key: str, value: torch.Tensor, flat_range: Flat | None
) -> RankTensor | str:
    """The RankTensor for `value`, the optimizer's state `key` for the parameter `name`.

    `flat_range` is the range of the flattened parameter that this rank's optimizer updates, or None
    if it updates the whole parameter.  Returns a str that says why the state is unavailable if the
    size of `value` does not fit the range.
    """
    if flat_range is None:
        return RankTensor(value)
    if value.numel() == flat_range.length and value.ndim:
        return RankTensor(value.reshape(-1), flat_range)
    if value.numel() == 1:
        # A single number, which exists only on ranks that have a part of the parameter.
        return RankTensor(value.reshape(1), Flat(0, 1, (), flat_range.axes))
    return f"the optimizer's {key} of {name} does not have the size of this rank's part of it"
