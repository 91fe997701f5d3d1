"""Finds the function of torch that a program calls, also if the program has replaced it.

A mode of torch gets the function that torch finds under the called function's name.  If the program
has replaced it, that is the outermost replacement, which is already running and has called torch's
own function, perhaps through other replacements.  A mode that called it again would do twice what
the replacements do.  Used by the modes of the recorder.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from types import (
    BuiltinFunctionType,
    CellType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch.overrides import handle_torch_function

from pytest_trainsafe.compat.operators import TensorBase
from pytest_trainsafe.core.code_files import TORCH

#: The types of functions that are written in C, which no program has written.
_IN_C = frozenset({MethodDescriptorType, WrapperDescriptorType, BuiltinFunctionType})

#: What torch passes to a mode for a property: one of these methods of the property.
_ACCESSES = ("__get__", "__set__", "__delete__")

#: The code of the function by which torch's functions that are written in Python call a mode.
_PASSES_ON = handle_torch_function.__code__


def called(function: Any, frame: FrameType) -> Any:
    """The function of torch that was called, given what a mode of torch got as `function`.

    `frame` is the frame that called the mode.  The result is `function` unless the program has
    replaced the function of torch, the method of a tensor or the property of a tensor that was
    called; it does not depend on how many replacements call each other, or on what they are.
    """
    kind = type(function)
    if kind in _IN_C:
        return function
    if kind is MethodWrapperType and type(function.__self__) is GetSetDescriptorType:
        return function  # a property that is written in C
    if frame.f_code is not _PASSES_ON:
        return _in_c(function)
    if kind is FunctionType and function.__code__.co_filename.startswith(TORCH):
        return function
    asked = frame.f_back
    return _of(asked) if asked is not None and _replaces(function, asked) else function


def _in_c(function: Any) -> Any:
    """The method or property in C in whose place a tensor has `function`; `function` if none.

    Only torch's own methods in C call a mode from C.  They look themselves up by name.
    """
    base = TensorBase
    for name, value in vars(torch.Tensor).items():
        original = getattr(base, name, None)
        if original is None or original is value:
            continue
        found = getattr(torch.Tensor, name, None)
        if _same(found, function):
            return original
        for access in _ACCESSES:
            if _same(getattr(found, access, None), function):
                return getattr(original, access)
    return function


def _replaces(function: Any, asked: FrameType) -> bool:
    """Whether the program has put `function` in place of the function that runs in `asked`.

    torch's functions in Python look themselves up by name too.  Some have a private part that does
    so, such as `_max_pool2d`.
    """
    name = asked.f_code.co_name
    for each in (name, name.lstrip("_")):
        held = getattr(torch.Tensor, each, None)
        for found in (asked.f_globals.get(each), held, getattr(held, "__get__", None)):
            if _same(found, function):
                return True
    return False


def _of(frame: FrameType) -> FunctionType:
    """The function that runs in a frame; the arguments of that call are its defaults.

    torch's functions do not pass on all of their arguments.
    """
    code, values = frame.f_code, frame.f_locals
    most = code.co_argcount + code.co_kwonlyargcount
    positional, keywords = (
        code.co_varnames[: code.co_argcount],
        code.co_varnames[code.co_argcount : most],
    )
    function = FunctionType(
        code,
        frame.f_globals,
        code.co_name,
        tuple(values.get(name) for name in positional),
        tuple(CellType(values.get(name)) for name in code.co_freevars),
    )
    function.__kwdefaults__ = {name: values.get(name) for name in keywords}
    return function


def _same(found: Any, function: Any) -> bool:
    """Whether two functions are the same.

    Looking up a bound method, a `partialmethod` or a proxy makes a new object each time.
    """
    if found is function:
        return True
    if found is None or type(found) is not type(function):
        return False
    if isinstance(found, FunctionType):
        return found.__code__ is function.__code__ and _identical(_held(found), _held(function))
    if isinstance(found, MethodType):
        return found.__self__ is function.__self__ and _same(found.__func__, function.__func__)
    if isinstance(found, MethodWrapperType):
        return found.__self__ is function.__self__ and found.__name__ == function.__name__
    if isinstance(found, functools.partial):
        return (
            _same(found.func, function.func)
            and _identical(found.args, function.args)
            and _identical(found.keywords, function.keywords)
            and _identical(found.keywords.values(), function.keywords.values())
        )
    wrapped = getattr(found, "__wrapped__", None)
    return wrapped is not None and _same(wrapped, getattr(function, "__wrapped__", None))


def _held(function: FunctionType) -> Iterator[Any]:
    """The objects that a function holds: its defaults, and what it refers to in outer functions."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # no value yet
            yield cell.cell_contents


def _identical(some: Iterable[Any], others: Iterable[Any]) -> bool:
    first, second = list(some), list(others)
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
