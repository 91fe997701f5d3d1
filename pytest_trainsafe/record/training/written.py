"""Records the lines that change gradients in place between the backward and the optimizer's step.

Such lines reduce, scale or clip gradients.  Lines that change parameters are kept as well; they
matter only if a forward follows in the same step (`conditions.py`).  Used in the Runs of a
localisation only, because every operation then costs a Python call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.hooks.sites import Sites
from pytest_trainsafe.record.training.tensors import memory
from pytest_trainsafe.trace.facts import Site

#: Operations that only clear a gradient.
_CLEARS = frozenset({"zero_", "fill_", "_foreach_zero_"})


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Intercepts the operations of a step, to find lines that change gradients or parameters.

    Operations inside a backward are ignored.  Changes of gradients inside a micro-batch are ignored
    too, because they belong to the backward of this micro-batch.
    """

    def __init__(self, clock: Clock, sites: Sites, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._sites = sites
        self._parameters = list(parameters)
        self._gradients: set[int] | None = None
        self._weights: set[int] | None = None
        self._found: dict[Site, None] = {}

    def found(self) -> list[Site]:
        """The source lines that changed parameters since the last call of `forget`."""
        return list(self._found)

    def forget(self) -> None:
        """Forgets the lines that changed parameters in the step that ends now.

        These changes are the optimizer's update.
        """
        self._found.clear()
        self._weights = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        backward = in_backward()
        if self._clock.open is not None or backward:
            self._gradients = None
        if func._schema.is_mutable and not backward:
            self._look_at(func, args)
        return func(*args, **(kwargs or {}))

    def _look_at(self, func: Any, args: Sequence[Any]) -> None:
        name = func._schema.name.rpartition("::")[2]
        if self._weights is None:
            self._weights = _memories(self._parameters)
        if _writes_to(func, args, self._weights):
            site = self._sites.here("alter", name)
            if site is not None:
                self._found[site] = None
        if self._clock.open is not None or name in _CLEARS:
            return
        if self._gradients is None:
            self._gradients = _memories(self._held())
        if _writes_to(func, args, self._gradients):
            self._sites.note("write", name=name)

    def _held(self) -> Iterator[torch.Tensor]:
        for parameter in self._parameters:
            for gradient in (parameter.grad, getattr(parameter, "main_grad", None)):
                if isinstance(gradient, torch.Tensor):
                    yield gradient


def _writes_to(func: Any, args: Sequence[Any], memories: Collection[int]) -> bool:
    """Whether an operation changes a tensor in one of these memories."""
    return any(
        memory(tensor) in memories
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(value)
    )


def _memories(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {memory(tensor) for tensor in tensors} - {0}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
