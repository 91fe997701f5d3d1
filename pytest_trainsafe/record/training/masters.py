"""The gradients and states of master copies, in the tensors that an optimizer updates.

A wrapper that trains in a wider dtype, or that shards the optimizer, gives the optimizer tensors of
its own, and names them by `main_param` of the parameter.  That is the optimizer's tensor itself, or
a view of a flat one, in which the masters of many parameters follow each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.core.layout import Sizes
from pytest_trainsafe.record.adapter import ParameterAdapter, RankTensor
from pytest_trainsafe.record.layouts.flat_ranges import optimizer_range
from pytest_trainsafe.record.tensors import local_values, memory
from pytest_trainsafe.record.training.optimizer import groups, states, stepping


def received(
    adapter: ParameterAdapter,
    parameters: Mapping[str, nn.Parameter],
    sizes: Sizes,
    optimizer: Any = None,
    given: Iterable[torch.Tensor] = (),
) -> Iterator[tuple[str, RankTensor | None]]:
    """For each parameter, the gradient that `optimizer` receives for its master copy, or its own.

    It is the parameter's own main gradient without an optimizer, and if there are `given` tensors
    that include neither the optimizer's tensor nor its gradient.
    """
    masters, wanted = Masters(optimizer), {id(each) for each in given}
    for name, parameter in parameters.items():
        yield (
            name,
            masters.gradient(name, parameter, sizes, wanted) or adapter.main_grad(name, parameter),
        )


class Masters:
    """The tensors that the innermost optimizers of `optimizer` update, to find masters in.

    They are listed when the first parameter with a `main_param` is looked for.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @cached_property
    def _held(self) -> dict[int, torch.Tensor]:
        optimizers = stepping(self._optimizer) if self._optimizer is not None else ()
        return {
            id(each): each
            for one in optimizers
            for group in groups(one)
            for each in group.get("params", ())
            if isinstance(each, torch.Tensor)
        }

    @cached_property
    def _by_memory(self) -> dict[int, list[torch.Tensor]]:
        found: dict[int, list[torch.Tensor]] = {}
        for each in self._held.values():
            if _is_plain(each):
                found.setdefault(memory(each), []).append(each)
        return found

    def gradient(
        self,
        name: str,
        parameter: torch.Tensor,
        sizes: Sizes,
        given: Collection[int] = (),
    ) -> RankTensor | None:
        """The gradient that the optimizer receives for the master copy of a parameter.

        None if no optimizer updates a master copy, if there is no gradient, or if there are `given`
        ids, but neither of the optimizer's tensor nor of its gradient.  A parameter with a
        `main_grad` has its gradient there.
        """
        found = self.holder(parameter)
        if found is None or getattr(parameter, "main_grad", None) is not None:
            return None
        held, part = found
        if held.grad is None or (given and not {id(held), id(held.grad)} & {*given}):
            return None
        gradient = part_of(held.grad, held, part)
        flat_range = optimizer_range(name, parameter, sizes)
        if gradient is None or flat_range is None:
            fits = gradient is not None and gradient.shape == parameter.shape
            return RankTensor(gradient) if gradient is not None and fits else None
        own = local_values(gradient).reshape(-1)
        return RankTensor(own, flat_range) if own.numel() == flat_range.length else None

    def states(self, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the states of the master copy of a parameter, with their names."""
        if (found := self.holder(parameter)) is None:
            return
        for key, value in states(self._optimizer, found[0]):
            part = part_of(value, *found)
            if part is not None:
                yield key, part

    def holder(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The optimizer's tensor that has the master copy of a parameter, and the master copy."""
        master = getattr(parameter, "main_param", None)
        if not isinstance(master, torch.Tensor) or not master.numel():
            return None
        if id(master) in self._held:
            return master, master
        if id(parameter) in self._held or not _is_plain(master):
            return None
        for each in self._by_memory.get(memory(master), ()):
            start = master.storage_offset() - each.storage_offset()
            if each.dtype == master.dtype and 0 <= start <= each.numel() - master.numel():
                return each, master
        return None


def part_of(tensor: torch.Tensor, held: torch.Tensor, master: torch.Tensor) -> torch.Tensor | None:
    """The elements of the gradient or a state of `held` that belong to the master copy in it.

    A single number, such as a count of steps, belongs to all; None for a tensor of another size.
    """
    if held is master or (tensor.numel() == 1 and held.numel() != 1):
        return tensor
    if tensor.numel() != held.numel() or not _is_plain(tensor):
        return None
    start = master.storage_offset() - held.storage_offset()
    return local_values(tensor).view(-1)[start : start + master.numel()].view(master.shape)


def is_copy(held: RankTensor, master: RankTensor | str | None) -> bool:
    """Whether this rank's part of a parameter equals the rounded values of its master copy."""
    if not isinstance(master, RankTensor):
        return False
    value, masters = local_values(held.tensor), local_values(master.tensor)
    if master.flat_range is not None and not master.flat_range.length:
        return True
    if master.flat_range is not None and held.flat_range is None:
        value = value.reshape(-1).narrow(0, master.flat_range.offset, master.flat_range.length)
    elif master.flat_range != held.flat_range:
        return False
    return value.shape == masters.shape and torch.equal(value, masters.to(value.dtype))


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_contiguous()
