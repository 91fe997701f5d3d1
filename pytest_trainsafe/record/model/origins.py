"""Notes which lines of a program make the tensors that reports may have to explain.

These are the inputs of the model, the outputs of its modules, and the loss that is differentiated.
A mode of torch sees every function that the program calls, which takes microseconds for each call.
So it is used only in Runs of a localisation.  Called by the recorder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_trainsafe.core.code_files import calling_frames, line_of
from pytest_trainsafe.record.model.replaced import called
from pytest_trainsafe.trace.facts import Made, MadeWhat
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter

#: The attribute that a tensor has from the function that made it: a line of the program.
_MADE_AT = "_trainsafe_made_at"


class Origins(TorchFunctionMode):
    """Gives each tensor that a function of torch returns the line of the program that called it.

    The program must run inside of this context manager.
    """

    def __init__(self, writer: RankWriter) -> None:
        super().__init__()
        self._writer = writer
        self._noted: set[tuple[MadeWhat, str]] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        func = called(func, sys._getframe(1))
        if type(func) is FunctionType and func.__code__.co_qualname == "Tensor.backward":
            self.note("loss", "", args[0])
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor:
            self._made((result,), sys._getframe(1))
        elif isinstance(result, tuple | list):
            self._made(result, sys._getframe(1))
        return result

    def _made(self, results: Sequence[Any], frame: FrameType) -> None:
        # A function that returns its argument, such as `to`, does not make it.  Parameters are not
        # results, and live longer than a step.
        made = [x for x in results if type(x) is torch.Tensor and not hasattr(x, _MADE_AT)]
        if made and (line := _line(frame)):
            for each in made:
                setattr(each, _MADE_AT, line)

    def forget(self, tensor: torch.Tensor) -> None:
        """Forgets the line that made a tensor: a module returns it, whose code reports name."""
        setattr(tensor, _MADE_AT, "")

    def note(self, what: MadeWhat, name: str, tensor: object) -> None:
        """Records the line that made a tensor, if it is known; each kind and name once.

        `what` says what the program uses the tensor as, and `name` is the path of its module or,
        for an input of the model, its key path.
        """
        line = getattr(tensor, _MADE_AT, "")
        if line and (what, name) not in self._noted:
            self._noted.add((what, name))
            self._writer.add(Made(what, name, line))


def origins(spec: RunSpec, writer: RankWriter) -> Origins | None:
    """The Origins of a Run; None if the Run's report needs none, or if they would change the Run.

    The compiler would trace the mode together with the program.
    """
    needed = bool(spec.rewrite) and not spec.trusted and not spec.point.get("compile", False)
    return Origins(writer) if needed else None


def _line(frame: FrameType | None) -> str:
    """The user's innermost line; the innermost outside of torch if the user has none, or "".

    Also "" if the recorder called the function.
    """
    line = ""
    for each, owner in calling_frames(frame):
        if owner == "ours":
            break
        if owner == "fixture":
            continue
        if owner == "project":
            return line_of(each)
        line = line or line_of(each)
    return line
