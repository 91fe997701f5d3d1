"""The program's own default dtype, which the float64 rung hides behind torch's.

In the float64 rung torch's default dtype is float64, so that what a program creates without a dtype
has the precision of the rung.  In the program's own runs the default is another, usually float32,
and two things must keep to that: random numbers (`draws`), because a generator yields others in
float64, and the scalars that torch's optimizers store, such as NAdam's product of momenta.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_trainsafe.compat.training import replaced_scalar_dtype
from pytest_trainsafe.core.rank.state import replacing

#: The dtypes of a Run that become torch's default dtype.
_WIDE = (torch.float64, torch.float32)


class ProgramDefault:
    """The default dtype of one program: what it was at the start, or what the program has set.

    `run` is the dtype of the Run.  While `installed`, float64 as `run` stays torch's default dtype
    whatever the program sets, and `dtype` has what the program set.  In other Runs the program's
    default dtype is torch's.
    """

    def __init__(self, run: torch.dtype) -> None:
        self.run = run
        self._own: torch.dtype | None = None
        self._before: torch.dtype | None = None
        self._set_default = torch.set_default_dtype

    @property
    def dtype(self) -> torch.dtype:
        """The default dtype that the program would have without the rung."""
        return torch.get_default_dtype() if self._own is None else self._own

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Makes `run` torch's default dtype, if it is float64 or float32, and restores it."""
        before = torch.get_default_dtype()
        # torch allows low-precision defaults, but constants would then lose far more precision
        # than in any recipe; so only the wide dtypes become the default.
        if self.run in _WIDE:
            torch.set_default_dtype(self.run)
        try:
            if self.run is torch.float64:
                with self._hidden(before):
                    yield
            else:
                yield
        finally:
            torch.set_default_dtype(before)

    @contextmanager
    def _hidden(self, own: torch.dtype) -> Iterator[None]:
        self._own = own
        set_default = torch.set_default_dtype
        replacing(torch, "set_default_dtype")
        torch.set_default_dtype = self._set
        self._set_default = set_default
        try:
            with replaced_scalar_dtype(self._scalar):
                yield
        finally:
            torch.set_default_dtype = set_default
            self._own = None

    def _set(self, d: torch.dtype, /) -> None:
        """Replaces `torch.set_default_dtype`: notes the program's default, and keeps torch's."""
        if not getattr(d, "is_floating_point", False):
            self._set_default(d)  # raises torch's own error
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("torch._dynamo."):
            return  # torch.compile restores the default that it read, which is not the program's
        # The program reads float64 as its default.  If it sets that again after another dtype, it
        # restores what it read.
        if d is torch.float64 and self._before is not None:
            self._own, self._before = self._before, None
        else:
            if self._before is None and d is not torch.float64:
                self._before = self._own
            self._own = d

    def _scalar(self, original: Callable[..., Any]) -> Callable[..., torch.dtype]:
        def scalar_dtype(is_fused: bool | None = None) -> torch.dtype:
            if is_fused or self.dtype is not torch.float64:
                return torch.float32
            return torch.float64

        return scalar_dtype
