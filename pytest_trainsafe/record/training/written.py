"""Notes the lines that change gradients in place between the backward and the optimizer's step.

They reduce, scale or clip gradients.  Used in the Runs that `pytest_trainsafe/localize` asks for:
each operation there costs a call of Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.hooks.sites import Sites
from pytest_trainsafe.record.layouts.dtensor import is_dtensor

#: Operations that only clear a gradient.
_CLEARS = frozenset({"zero_", "fill_", "_foreach_zero_"})


class GradientWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operation of a step, and ignores those within a micro-batch or a backward."""

    def __init__(self, clock: Clock, sites: Sites, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._sites = sites
        self._parameters = list(parameters)
        self._gradients: set[int] | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._clock.open is not None or torch._C._current_graph_task_id() != -1:
            self._gradients = None
        elif func._schema.is_mutable:
            self._look_at(func, args)
        return func(*args, **(kwargs or {}))

    def _look_at(self, func: Any, args: Sequence[Any]) -> None:
        name = func._schema.name.rpartition("::")[2]
        if name in _CLEARS:
            return
        if self._gradients is None:
            self._gradients = {_memory(each) for each in self._held()} - {0}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            if any(_memory(tensor) in self._gradients for tensor in _tensors(value)):
                self._sites.note("write", name=name)
                return

    def _held(self) -> Iterator[torch.Tensor]:
        for parameter in self._parameters:
            for gradient in (parameter.grad, getattr(parameter, "main_grad", None)):
                if isinstance(gradient, torch.Tensor):
                    yield gradient


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _memory(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory; 0 for none."""
    held: Any = tensor
    try:
        local = held._local_tensor if is_dtensor(held) else held
        return int(local.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # fake and functional tensors have none
        return 0
