"""Finds casts to a narrower float, and to FP8, which limit how precisely a Run can be judged.

Used around a reference run.  A cast is any operation at the dispatcher that takes a tensor of the
Run's dtype, or of a dtype that it was cast to, and returns a narrower float.  Every cast counts,
even if its result is only logged or discarded, because the later use of a tensor cannot be seen
here; one cast too many only makes the rung use that dtype's wider tolerances.  Casts before
`ctx.watch` do not count if the model then has the Run's dtype, because they belong to its
initialisation.
`.item()` is not a cast.  Autocast does not affect float64, so it narrows nothing in a float64 Run
whose program keeps to `ctx.dtype`.

Casts to FP8 are different.  They quantise in steps of up to an eighth of a value: noise that is
far smaller than a step seldom moves a value across one, but then the value jumps by a whole step.
So they are noted separately, in every dtype; `runs/rounding.py` describes the consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from pytest_trainsafe.compat.dispatch_modes import TorchDispatchMode
from pytest_trainsafe.core.code_files import calling_lines
from pytest_trainsafe.trace.facts import Cast

_BITS = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
_FP8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
)
_WIDTHS = {torch.float64: 53, **_BITS}


class CastWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds the narrowest dtype that a tensor of dtype `own` is cast to, and where it is cast.

    They are `narrowest` (None without a cast) and `where`, a file:line.  `quantised` is the
    file:line of the first cast to FP8, or "".
    """

    def __init__(self, own: torch.dtype = torch.float64) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = own
        self.narrowest: torch.dtype | None = None
        self.where = ""
        self.quantised = ""

    def forget(self) -> None:
        """Discards the casts so far, which belong to the initialisation of the model.

        They cannot make a difference: however initial values are rounded, reference and candidate
        must start with bit-identical parameters.
        """
        self.narrowest, self.where, self.quantised = None, "", ""

    def found(self) -> Iterator[Cast]:
        """What a trace has of the casts: the narrowest, and the first to FP8."""
        if self.narrowest is not None:
            dtype = str(self.narrowest).removeprefix("torch.")
            yield msgspec.convert({"type": "cast", "dtype": dtype, "at": self.where}, Cast)
        if self.quantised:
            yield Cast("float8", self.quantised)

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
        # Copying or gathering FP8 values is not a cast.
        if any(isinstance(each, torch.Tensor) and each.dtype in _WIDTHS for each in args):
            self.quantised, _ = calling_lines()

    def _note(self, func: Callable[..., Any], args: Sequence[Any], dtype: torch.dtype) -> None:
        if _WIDTHS[dtype] >= _WIDTHS.get(self.narrowest or self._own, 0):
            return
        name = func.__name__.partition(".")[0]
        if name.startswith("new_") or name.endswith("_like"):
            return  # uses a tensor's shape and dtype, not its values
        # A 0-d tensor scales tensors of a narrower dtype like a Python number, without a cast.
        least = 0 if name in ("_to_copy", "copy_") else 1
        if any(
            isinstance(each, torch.Tensor)
            and (each.dtype is self._own or each.dtype is self.narrowest)
            and each.ndim >= least
            for each in args
        ):
            self.narrowest = dtype
            self.where, _ = calling_lines()
