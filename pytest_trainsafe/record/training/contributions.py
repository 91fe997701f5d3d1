"""Adds up what each micro-batch contributes to the gradients of parameters.

One backward may reach a parameter several times, as in reentrant recomputation; the contributions
are added.  But a checkpoint function may call `torch.autograd.grad` in its `backward` and return
the gradients of the parameters.  Hooks on a parameter then run twice for one contribution: in the
inner call, and when autograd adds what the function returns to `.grad`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from types import CodeType
from typing import Any

import torch

from pytest_trainsafe.record.training.unclipped import Waiting

_grad: Any = torch.autograd.grad
_backward: Any = torch.autograd.backward
_function: Any = torch.autograd.function.BackwardCFunction.apply

_GRAD: CodeType = _grad.__code__
_BACKWARD: CodeType = _backward.__code__
#: Runs the `backward` of a custom function; in a thread of the engine nothing is below it.
_FUNCTION: CodeType = _function.__code__


class Contributions:
    """The gradients of micro-batches that have yet to be written, by micro-batch and parameter."""

    def __init__(self) -> None:
        self._added: defaultdict[int, dict[str, Waiting]] = defaultdict(dict)
        # These count only if the function does not return them.
        self._inner: defaultdict[int, dict[str, Waiting]] = defaultdict(dict)

    @property
    def microbatches(self) -> list[int]:
        """The micro-batches that have contributions, in order."""
        return sorted({*self._added, *self._inner})

    def add(self, microbatch: int, name: str, held: Waiting) -> None:
        """Adds a contribution to the parameter `name`.  Called from a hook on its gradient."""
        parts = (self._inner if in_inner_grad() else self._added)[microbatch]
        where, part, layout, source = held
        parts[name] = where, (parts[name][1] + part if name in parts else part), layout, source

    def pop(self, microbatch: int) -> list[Waiting]:
        """Removes and returns the contributions of one micro-batch."""
        held = {**self._inner.pop(microbatch, {}), **self._added.pop(microbatch, {})}
        return list(held.values())

    def clear(self) -> None:
        """Discards everything."""
        self._added.clear()
        self._inner.clear()


def in_inner_grad() -> bool:
    """Whether this is called in `torch.autograd.grad` that runs inside a custom `backward`.

    Called from a hook on a gradient.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code not in (_GRAD, _BACKWARD, _FUNCTION):
        frame = frame.f_back
    if frame is None or frame.f_code is not _GRAD:
        return False
    while frame is not None and frame.f_code is not _FUNCTION:
        frame = frame.f_back
    return frame is not None
