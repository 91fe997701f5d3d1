"""Records the lines that change gradients in place between the backward and the optimizer's step.

Such lines reduce, scale or clip gradients.  Lines that change parameters are kept as well; they
matter only if a forward follows in the same step (`conditions.py`), or if no optimizer holds the
parameters (`unheld.py`).  Lines that clear gradients are recorded if another backward follows in
the same step: they lose what was accumulated; lines that change them before it are marked so, since
micro-batches then have different weights.  Used in the Runs of a localisation only, because
every operation then costs a Python call.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
import torch
from torch import nn

from pytest_trainsafe.compat.dispatch_modes import TorchDispatchMode
from pytest_trainsafe.compat.operators import schema_of
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.lines.origins import Origins
from pytest_trainsafe.record.lines.sites import Sites
from pytest_trainsafe.record.tensors import memory
from pytest_trainsafe.record.training.unheld import UnheldChanges, tensors_of
from pytest_trainsafe.trace.facts import Site

#: Operations that multiply by a number, with the power of the number that is the factor.
_SCALES = {"mul_": 1, "_foreach_mul_": 1, "div_": -1, "_foreach_div_": -1}

#: Operations that only clear a gradient.
_CLEARS = frozenset({"zero_", "fill_", "_foreach_zero_"})


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Intercepts the operations of a step, to find lines that change gradients or parameters.

    Operations inside a backward are ignored.  Of the changes of gradients inside a micro-batch,
    only those that the program itself makes are recorded: those of a framework belong to its
    backward.
    """

    def __init__(
        self,
        clock: Clock,
        sites: Sites,
        parameters: Iterable[nn.Parameter],
        unheld: UnheldChanges,
        origins: Origins | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unheld = unheld
        self._clock = clock
        self._sites = sites
        self._parameters = list(parameters)
        self._gradients: set[int] | None = None
        self._weights: set[int] | None = None
        self._found: dict[Site, None] = {}
        self._noted: set[Site] = set()
        #: The lines that cleared or changed gradients, and how many micro-batches had a backward
        #: before.
        self._early: dict[Site, int] = {}
        self._watched = {id(parameter) for parameter in self._parameters}
        if origins is not None:
            origins.on_cleared = self._on_cleared

    def __enter__(self) -> Self:
        self.unheld.begin()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.unheld.end()

    def found(self) -> list[Site]:
        """The source lines that changed parameters since the last call of `forget`."""
        return list(self._found)

    def forget(self) -> None:
        """Forgets the lines that changed parameters in the step that ends now.

        These changes are the optimizer's update.  Records the lines that cleared or changed
        gradients before a later backward of the step.
        """
        for site, before in self._early.items():
            if before < self._clock.differentiated:
                self._sites.add(site)
        self._early.clear()
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
        if schema_of(func).is_mutable and not backward:
            self._look_at(func, args)
        if not backward:
            self.unheld.look_at(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _look_at(self, func: Any, args: Sequence[Any]) -> None:
        name = schema_of(func).name.rpartition("::")[2]
        if self._weights is None:
            self._weights = _memories(self._parameters)
        if _writes_to(func, args, self._weights):
            site = self._sites.here("alter", name)
            if site is not None:
                self._found[site] = None
        if name in _CLEARS and not self._clock.differentiated:
            return
        if self._gradients is None:
            self._gradients = _memories(self._held())
        if not _writes_to(func, args, self._gradients):
            return
        if name not in _CLEARS:
            self._note(name, args)
        elif name != "fill_" or not args[1]:
            self._clear()

    def _on_cleared(self, tensor: torch.Tensor) -> None:
        """Called before the program sets a tensor's `grad` to None."""
        if id(tensor) in self._watched and tensor.grad is not None and not in_backward():
            self._clear()

    def _clear(self) -> None:
        """Keeps the line that clears a gradient until the step's end shows if it loses anything."""
        if self._clock.differentiated and not self._clock.stepping:
            site = self._sites.here("clear")
            if site is not None:
                self._early.setdefault(site, self._clock.differentiated)

    def _note(self, name: str, args: Sequence[Any]) -> None:
        """Records the line of an operation on gradients, with the factor of its first time."""
        site = self._sites.here("write", name)
        if site is None or (site.user and self._clock.open is not None):
            return
        early = msgspec.structs.replace(site, what="early")
        self._early.setdefault(early, self._clock.differentiated)
        if site in self._noted:
            return
        self._noted.add(site)
        self._sites.add(msgspec.structs.replace(site, factor=_factor(name, args)))

    def _held(self) -> Iterator[torch.Tensor]:
        for parameter in self._parameters:
            for gradient in (parameter.grad, getattr(parameter, "main_grad", None)):
                if isinstance(gradient, torch.Tensor):
                    yield gradient


def _writes_to(func: Any, args: Sequence[Any], memories: Collection[int]) -> bool:
    """Whether an operation changes a tensor in one of these memories."""
    return any(
        memory(tensor) in memories
        for argument, value in zip(schema_of(func).arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in tensors_of(value)
    )


def _factor(name: str, args: Sequence[Any]) -> float:
    """The number by which an operation multiplies its first argument; 0 if it is not known."""
    power, by = _SCALES.get(name, 0), args[1] if len(args) > 1 else None
    if isinstance(by, list | tuple) and by and all(isinstance(n, int | float) for n in by):
        by = by[0] if len({*by}) == 1 else None
    if type(by) is torch.Tensor and by.numel() == 1 and not by.is_meta:
        by = by.item()
    if not power or not isinstance(by, int | float) or not by or not math.isfinite(by):
        return 0.0
    return float(by) ** power


def _memories(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {memory(tensor) for tensor in tensors} - {0}
