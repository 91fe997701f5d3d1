"""Notes which lines of a program make the tensors that reports may have to explain.

These are the inputs of the model, the outputs of its modules, and the loss that is differentiated.
A mode of torch sees every function that the program calls, which takes microseconds for each call.
So it is used only in Runs of a localisation.  Called by the recorder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_trainsafe.compat.operators import TensorBase
from pytest_trainsafe.core.code_files import calling_frames, line_of
from pytest_trainsafe.record.lines.replaced import called
from pytest_trainsafe.trace.facts import Made, MadeWhat
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter

#: The attribute that a tensor has from the function that made it: a line of the program.
_MADE_AT = "_trainsafe_made_at"

#: The attribute with the number of the model's call after which a tensor was made.
_MADE_AFTER = "_trainsafe_made_after"

#: The attribute with the lines that made the tensors that a tensor was computed from.
_MADE_OF = "_trainsafe_made_of"

#: What torch calls for `tensor.grad = value`.
_SETS_GRADIENT: Any = torch.Tensor.__dict__.get("grad", TensorBase.grad).__set__

#: Of so many lines a tensor remembers that its value comes from them, the nearest first.
MAX_LINES = 4


class Origins(TorchFunctionMode):
    """Gives each tensor that a function of torch returns the line of the program that called it.

    The program must run inside of this context manager.
    """

    def __init__(self, writer: RankWriter) -> None:
        super().__init__()
        self._writer = writer
        self._noted: set[tuple[MadeWhat, str]] = set()
        self._calls = 0
        #: Called with a tensor whose `grad` the program is about to set to None.
        self.on_cleared: Callable[[torch.Tensor], None] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        func = called(func, sys._getframe(1))
        if type(func) is FunctionType and func.__code__.co_qualname == "Tensor.backward":
            self.note("loss", "", args[0])
        elif self.on_cleared is not None and func == _SETS_GRADIENT and args[1] is None:
            self.on_cleared(args[0])
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor:
            self._made((result,), args, sys._getframe(1))
        elif isinstance(result, tuple | list):
            self._made(result, args, sys._getframe(1))
        return result

    def _made(self, results: Sequence[Any], args: Sequence[Any], frame: FrameType) -> None:
        # A function that returns its argument, such as `to`, does not make it.  Parameters are not
        # results, and live longer than a step.
        made = [x for x in results if type(x) is torch.Tensor and not hasattr(x, _MADE_AT)]
        if made and (line := _line(frame)):
            of = self._lines_of(args, line)
            for each in made:
                setattr(each, _MADE_AT, line)
                setattr(each, _MADE_OF, of)
                setattr(each, _MADE_AFTER, self._calls)

    def _lines_of(self, args: Sequence[Any], line: str) -> tuple[str, ...]:
        """The lines other than `line` that made the tensors in a function's `args`.

        The lines of these tensors come first, and then those of the tensors that they are made of.
        Tensors of the batch, made before the model was called, have none.
        """
        given: list[Any] = []
        for each in args:
            given += each if isinstance(each, list | tuple) else [each]
        tensors = [
            each
            for each in given
            if type(each) is torch.Tensor
            if each.requires_grad or getattr(each, _MADE_AFTER, self._calls) == self._calls
        ]
        found = dict.fromkeys(getattr(each, _MADE_AT, "") for each in tensors)
        for each in tensors:
            found |= dict.fromkeys(getattr(each, _MADE_OF, ()))
        return tuple(each for each in found if each and each != line)[:MAX_LINES]

    def model_called(self) -> None:
        """Notes that the model is about to run."""
        self._calls += 1

    def forget(self, tensor: torch.Tensor) -> None:
        """Forgets the line that made a tensor: a module returns it, whose code reports name."""
        setattr(tensor, _MADE_AT, "")
        setattr(tensor, _MADE_OF, ())

    def note(self, what: MadeWhat, name: str, tensor: object) -> None:
        """Records the line that made a tensor, if it is known; each kind and name once.

        `what` says what the program uses the tensor as, and `name` is the path of its module or,
        for an input of the model, its key path.
        """
        line = getattr(tensor, _MADE_AT, "")
        if line and (what, name) not in self._noted:
            self._noted.add((what, name))
            of = getattr(tensor, _MADE_OF, ()) if what == "loss" else ()
            self._writer.add(Made(what, name, line, of))


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
