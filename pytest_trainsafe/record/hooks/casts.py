"""Finds casts out of float64, and to FP8: they decide by whose rounding a run can be judged.

Used around a reference run.  Sees every operation that reaches the dispatcher and takes float64
in and gives a narrower float out.  Every one counts, also where its
result is only logged or thrown away: what becomes of a tensor cannot be seen here, and the price
of a cast too many is a float64 rung that is judged as wide as that dtype.  Casts before
`ctx.watch` do not count where the model has the Run's dtype then: they initialised it.
`.item()` is no cast.  Autocast leaves float64 alone, so it narrows nothing at this rung.

FP8 is another matter.  Its casts are steps, up to an eighth of a value high: noise far smaller
than a step seldom takes a value across one, and when it does the value jumps by all of it.  So
they are noted apart, in every dtype; `runs/rounding.py` says what follows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_trainsafe.core.code_files import TORCH, is_ours

_BITS = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
_FP8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
)
_WIDER = frozenset({torch.float64, *_BITS})


class CastWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds the narrowest dtype that a float64 tensor is cast to, and where: file:line.

    `quantised` is where a tensor was first cast to FP8, or "".
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrowest: torch.dtype | None = None
        self.where = ""
        self.quantised = ""

    def forget(self) -> None:
        """Forget the casts until now: those before training, which make what both sides start from.

        What a program makes before its first step has the same bits in reference and candidate,
        however it is rounded: parameters must start equal, bit by bit.
        """
        self.narrowest, self.where, self.quantised = None, "", ""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype in _BITS and result.numel():
            self._note(func, args, result.dtype)
        elif isinstance(result, torch.Tensor) and result.dtype in _FP8 and not self.quantised:
            self._note_fp8(args)
        return result

    def _note_fp8(self, args: Sequence[Any]) -> None:
        # Codes that are copied or gathered are no cast.
        if any(isinstance(each, torch.Tensor) and each.dtype in _WIDER for each in args):
            self.quantised = _user_line()

    def _note(self, func: Callable[..., Any], args: Sequence[Any], dtype: torch.dtype) -> None:
        if self.narrowest is not None and _BITS[dtype] >= _BITS[self.narrowest]:
            return
        name = func.__name__.partition(".")[0]
        if name.startswith("new_") or name.endswith("_like"):
            return  # takes the form of a tensor, not its values
        # A number in a float64 tensor scales float32 ones as a Python number does, without a cast.
        least = 0 if name in ("_to_copy", "copy_") else 1
        if any(
            isinstance(each, torch.Tensor) and each.dtype is torch.float64 and each.ndim >= least
            for each in args
        ):
            self.narrowest = dtype
            self.where = _user_line()


def _user_line() -> str:
    """The innermost line outside torch and the recorder; of a backward, where it was started."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not (file.startswith((TORCH, "<")) or is_ours(file)):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
