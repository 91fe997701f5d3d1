"""Locates a parameter's value, gradient, master copy and optimizer state on this rank.

Used by the parameter recorder.  `AttributeHoldings` reads Megatron-LM's attributes and also suits
plain PyTorch; adapters of frameworks that store values elsewhere have implementations of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from pytest_trainsafe.core.layout import Flat, Sizes
from pytest_trainsafe.record.layouts.flat_ranges import optimizer_run
from pytest_trainsafe.record.training.optimizer import states
from pytest_trainsafe.record.training.tensors import local_values, tell_ledger


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of this rank that belongs to a parameter.

    Without a `run` it has the parameter's layout.  With a `run` it is a vector: that range of this
    rank's flattened part of the parameter; or a single number, if the range's shape is ().
    A range of length 0 means that this rank has none of it.
    """

    tensor: torch.Tensor
    run: Flat | None = None


class Holdings(Protocol):
    """Finds the tensors of a parameter.  A str in place of a tensor says why it is unavailable."""

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """The shape of this rank's part of the parameter, even while its memory is elsewhere."""

    def value(self, name: str, parameter: nn.Parameter) -> Held:
        """The tensor that the model computes with."""

    def main_grad(self, name: str, parameter: nn.Parameter) -> Held | None:
        """The gradient that the optimizer is about to use, after every reduction."""

    def master(self, name: str, parameter: nn.Parameter) -> Held | str | None:
        """The copy that the optimizer updates, if it is not the parameter itself."""

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, Held | str]]:
        """The tensors of the optimizer's state, by name."""


class AttributeHoldings:
    """Uses `main_grad`, `main_param` and `main_param_range` on parameters that have them."""

    def __init__(self, sizes: Sizes, optimizer: Any) -> None:
        self.sizes = sizes
        self.optimizer = optimizer

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """The shape of the parameter itself."""
        return tuple(parameter.shape)

    def value(self, name: str, parameter: nn.Parameter) -> Held:
        """The parameter itself."""
        return Held(parameter)

    def main_grad(self, name: str, parameter: nn.Parameter) -> Held | None:
        """`main_grad`, else `grad`; with a `main_param_range`, this rank's range of it."""
        grad = getattr(parameter, "main_grad", None)
        if grad is None:
            grad = parameter.grad
        if grad is None:
            return None
        tell_ledger(grad, f"{name}.grad")
        run = optimizer_run(name, parameter, self.sizes)
        if run is None:
            return Held(grad)
        mine = local_values(grad).reshape(-1)
        if mine.numel() != run.length:
            mine = mine.narrow(0, run.offset, run.length)
        return Held(mine, run)

    def master(self, name: str, parameter: nn.Parameter) -> Held | str | None:
        """`main_param`, or why it is unavailable; None without one."""
        master = getattr(parameter, "main_param", None)
        run = optimizer_run(name, parameter, self.sizes)
        if not isinstance(master, torch.Tensor):
            empty = run is not None and not run.length
            return Held(parameter.new_empty(0), run) if empty else None
        if run is not None:
            return Held(local_values(master).reshape(-1), run)
        if master.shape == parameter.shape:
            return Held(master)
        return f"{name}: its main_param has another shape"

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, Held | str]]:
        """The state of the parameter or of its `main_param`, in the watched optimizer."""
        run = optimizer_run(name, parameter, self.sizes)
        for key, value in states(self.optimizer, parameter):
            yield key, value_of_run(name, key, value, run)


def value_of_run(name: str, key: str, value: torch.Tensor, run: Flat | None) -> Held | str:
    """A tensor of the optimizer's state for a parameter, or for a range of it."""
    if run is None:
        return Held(value)
    if value.numel() == run.length and value.ndim:
        return Held(value.reshape(-1), run)
    if value.numel() == 1:
        # A single number, which exists only on ranks that have a part of the parameter.
        return Held(value.reshape(1), Flat(0, 1, (), run.axes))
    return f"{name}: the optimizer's {key} has another shape"
