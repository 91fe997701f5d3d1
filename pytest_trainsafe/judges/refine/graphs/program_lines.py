"""The lines of a program that is captured: each operator's, and that of the forward for a backward.

`make_fx` notes lines only inside of functions that are called `forward`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

from torch.fx.traceback import preserve_node_meta, set_stack_trace

from pytest_trainsafe.compat.autograd import nodes_made, running_node
from pytest_trainsafe.compat.dispatch_modes import CompilableMode
from pytest_trainsafe.core.code_files import PACKAGE, TORCH, is_ours, is_stdlib

#: torch's function that runs a backward.
_ENGINE = "_engine_run_backward"
_OWN = str(PACKAGE / "judges" / "refine") + os.sep


@contextmanager
def program_lines() -> Iterator[None]:
    """While it is active, nodes that `make_fx` makes have the line of the program.

    It is the innermost line outside of torch and this package.  An operator that the backward runs
    for one of the forward has the forward's line.
    """
    with preserve_node_meta(), _Lines():
        yield


class _Lines(CompilableMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.seen = nodes_made()
        self.forward: dict[int, str] = {}  # lines by the numbers of autograd's nodes

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        line = self._line(sys._getframe(1))
        set_stack_trace([line] if line else [])
        return function(*args, **(kwargs or {}))

    def _line(self, frame: FrameType | None) -> str:
        """The line of an operator that is called below a frame; "" if the program has none."""
        derivative = False
        while frame is not None and _passed(frame.f_code.co_filename):
            # A function in Python that computes derivatives is found before torch's.
            derivative = derivative or frame.f_code.co_name == _ENGINE
            frame = frame.f_back
        line = ""
        if frame is not None:
            file = frame.f_code.co_filename
            file = min(file, os.path.relpath(file), key=len) if os.path.exists(file) else file
            line = f'File "{file}", line {frame.f_lineno}'
        if derivative:
            number = running_node()
            return self.forward.get(number, line) if number is not None else line
        # Autograd makes its node before the operator runs.
        made = nodes_made()
        self.forward |= dict.fromkeys(range(self.seen, made), line)
        self.seen = made
        return line


@cache
def _passed(file: str) -> bool:
    """Whether a file has no line of a program."""
    return file.startswith((TORCH, _OWN, "<frozen ")) or is_ours(file) or is_stdlib(file)
