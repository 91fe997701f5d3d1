"""Finds casts out of float64: a program that narrows cannot be judged at float64's rounding.

Used around a reference run at the float64 rung.  Sees every cast that reaches the dispatcher,
with the module that was running.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_BITS = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}


class CastWatch(TorchDispatchMode):
    """Collects `(dtype, where)` of the narrowest cast of a float64 tensor to another float."""

    def __init__(self) -> None:
        super().__init__()
        self.narrowest: torch.dtype | None = None
        self.where = ""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default or func is torch.ops.aten.copy_.default:
            self._note(args, result)
        return result

    def _note(self, args: Sequence[Any], result: Any) -> None:
        source = args[-1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
        if not isinstance(source, torch.Tensor) or source.dtype is not torch.float64:
            return
        bits = _BITS.get(result.dtype)
        if bits is None or source.numel() == 0:
            return
        if self.narrowest is None or bits < _BITS[self.narrowest]:
            self.narrowest = result.dtype
            self.where = _user_frame()


def _user_frame() -> str:
    """The innermost frame outside torch and this package's recorder."""
    for frame in reversed(traceback.extract_stack()):
        inside = "/torch/" in frame.filename or "/pytest_trainsafe/record/" in frame.filename
        if not inside and not frame.filename.startswith("<"):
            return f"{frame.filename}:{frame.lineno}"
    return "the backward pass"
