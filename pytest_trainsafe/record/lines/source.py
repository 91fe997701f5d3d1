"""Finds the source lines of a module's class, and of the functions that an instance has.

Called by the recorder.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import re
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from pytest_trainsafe.core.code_files import TORCH
from pytest_trainsafe.trace.schema import ModuleEvent

#: Modules of torch that derive classes from a module's class.
_MADE_BY = (
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "torch.nn.utils.parametrize",
)

#: The beginning of a line that defines a class.
_DEFINES = re.compile(r"\s*class\s+(\w+)")


@functools.cache
def source_of(cls: type) -> str:
    """`file:line` of a class; "" if it was created at run time or in a C extension."""
    try:
        file = inspect.getsourcefile(cls)
        return f"{file}:{_only_line(cls, file or '') or inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return ""


def _only_line(cls: type, file: str) -> int | None:
    """The number of the only line that can define the class; None if there is no such line.

    `inspect` parses the whole file for each class, which would take longer than a training step.
    """
    lines, name = linecache.getlines(file), cls.__name__
    found = [
        number
        for number, line in enumerate(lines, start=1)
        if name in line and (defined := _DEFINES.match(line)) and defined[1] == name
    ]
    # A decorated class begins at its first decorator, which this search does not find.
    if len(found) != 1 or (found[0] > 1 and not _ends_no_decorator(lines[found[0] - 2])):
        return None
    return found[0]


def _ends_no_decorator(line: str) -> bool:
    """Whether a line is blank or a comment, so that no decorator ends on it."""
    return not line.strip() or line.lstrip().startswith("#")


def described_class(cls: type) -> type:
    """The first class in the MRO that FSDP2 or torch's parametrizations did not derive."""
    return next(each for each in cls.__mro__ if not each.__module__.startswith(_MADE_BY))


def replaced_forward(module: nn.Module) -> str:
    """`file:line` of a forward that replaces the one of the module's class; "" if there is none.

    The replacement may be an attribute of the instance, or code in another file may have set it on
    the class.  Functions of torch do not count as replacements.
    """
    own = vars(module).get("forward")
    cls: Any = type(module if own is None else own)
    if own is None:
        return _replaced_in_class(cls)
    code = _code(own)
    if code is None:
        return source_of(cls)
    return "" if code.co_filename.startswith(TORCH) else _line(code)


@functools.cache
def _replaced_in_class(cls: type) -> str:
    code = _code(inspect.unwrap(getattr(cls, "forward", None) or cls.__call__))
    if code is None or code.co_filename.startswith((TORCH, "<")):
        return ""
    for each in cls.__mro__:
        with contextlib.suppress(OSError, TypeError):
            if inspect.getsourcefile(each) == code.co_filename:
                return ""
    return _line(code)


def held_functions(module: nn.Module) -> tuple[tuple[str, str], ...]:
    """The functions that a module has as attributes, besides `forward`: their names and lines.

    Functions of torch, and those in the file of the module's class, are left out.
    """
    own = source_of(described_class(type(module))).rpartition(":")[0]
    codes = (
        (name, _code(value))
        for name, value in vars(module).items()
        if name != "forward" and isinstance(value, FunctionType | MethodType | functools.partial)
    )
    return tuple(
        (name, _line(code))
        for name, code in codes
        if code is not None
        if code.co_filename != own and not code.co_filename.startswith((TORCH, "<"))
    )


def _line(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"


def _code(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    found = getattr(getattr(function, "__func__", function), "__code__", None)
    return found if isinstance(found, CodeType) else None


def described(module: nn.Module, name: str) -> ModuleEvent:
    """The event that describes a module: its class and parameters, and where they are defined."""
    cls = described_class(type(module))
    parameters = tuple(each for each, _ in module.named_parameters(recurse=False))
    return ModuleEvent(
        name,
        cls.__qualname__,
        source_of(cls),
        parameters,
        replaced_forward(module),
        held_functions(module),
    )
