"""Reads gradients, float32 copies and optimizer states under ZeRO stage 0 in half precision.

There every rank keeps float32 copies of all parameters.  `UnfusedCopies` reads an optimizer with
one copy for each parameter, and `FlatCopies` one with a flat copy for each parameter group
(deepspeed/runtime/fp16/unfused_optimizer.py and fused_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.frameworks.deepspeed.groups import unscaled
from pytest_trainsafe.record.adapter import RankTensor


class UnfusedCopies:
    """Reads the state of an optimizer that updates one float32 copy per parameter."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._copies: dict[nn.Parameter, torch.Tensor] = {}
        for parameters, copies in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
            self._copies.update(zip(parameters, copies, strict=True))

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """The shape of the parameter itself."""
        return tuple(parameter.shape)

    def value(self, name: str, parameter: nn.Parameter) -> RankTensor:
        """The parameter itself."""
        return RankTensor(parameter)

    def main_grad(self, name: str, parameter: nn.Parameter) -> RankTensor | None:
        """The parameter's `grad`, divided by the loss scale; None if it has none."""
        grad = parameter.grad
        return None if grad is None else RankTensor(unscaled(grad.detach(), self.optimizer))

    def master(self, name: str, parameter: nn.Parameter) -> RankTensor | str | None:
        """The parameter's float32 copy; None if it is not trained."""
        copy = self._copies.get(parameter)
        return None if copy is None else RankTensor(copy.detach())

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, RankTensor | str]]:
        """Yields the names and tensors of the inner optimizer's state for the float32 copy."""
        copy = self._copies.get(parameter)
        if copy is None:
            return
        for key, value in self.optimizer.optimizer.state.get(copy, {}).items():
            if isinstance(value, torch.Tensor):
                yield key, RankTensor(value)


class FlatCopies(UnfusedCopies):
    """Reads the state of an optimizer that updates one flat float32 copy per parameter group."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._places: dict[nn.Parameter, tuple[torch.Tensor, int]] = {}
        for parameters, flat in zip(optimizer.fp16_groups, optimizer.fp32_groups_flat, strict=True):
            offset = 0
            for parameter in parameters:
                self._places[parameter] = flat, offset
                offset += parameter.numel()

    def master(self, name: str, parameter: nn.Parameter) -> RankTensor | str | None:
        """The parameter's part of the flat copy; None if it is not trained."""
        if parameter not in self._places:
            return None
        flat, offset = self._places[parameter]
        return RankTensor(_view(flat.detach(), offset, parameter))

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, RankTensor | str]]:
        """Yields, by name, the parameter's parts of the inner optimizer's flat states."""
        if parameter not in self._places:
            return
        flat, offset = self._places[parameter]
        for key, value in self.optimizer.optimizer.state.get(flat, {}).items():
            if isinstance(value, torch.Tensor):
                whole = value.numel() == flat.numel()
                yield key, RankTensor(_view(value, offset, parameter) if whole else value)


def _view(flat: torch.Tensor, offset: int, parameter: nn.Parameter) -> torch.Tensor:
    return flat.reshape(-1).narrow(0, offset, parameter.numel()).view(parameter.shape)
