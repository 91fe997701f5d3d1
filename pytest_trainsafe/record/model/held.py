"""Finds the objects that one rank's program holds, among those of all ranks of the process.

The garbage collector lists the objects of a process.  If several ranks run in it, those of this
rank are the ones that its stack and the variables of the project's modules lead to.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from inspect import CO_OPTIMIZED
from types import FrameType, FunctionType, ModuleType
from typing import Any

from pytest_trainsafe.core.code_files import is_ours, owner_of


def held_here() -> set[int]:
    """The ids of all objects that the program of the rank that calls this holds now.

    Not those behind objects of this package, which lead to the other ranks, nor behind variables of
    installed modules and of classes in them, which all ranks share.
    """
    ours: dict[type, bool] = {}
    seen: set[int] = set()
    # A frame's variables may be a copy, whose address another object would get while this looks.
    roots = [each for names in _variables() for each in names]
    todo: list[Any] = [*roots]
    while todo:
        new: list[Any] = []
        for each in todo:
            if id(each) in seen or not gc.is_tracked(each):
                continue
            seen.add(id(each))
            kind = type(each)
            if kind not in ours:
                ours[kind] = is_ours(_file_of(kind))
            if not ours[kind]:
                new.append(each)
        plain = [each for each in new if not isinstance(each, _LEADING_OUT)]
        todo = gc.get_referents(*plain)
        for each in new:
            if isinstance(each, _LEADING_OUT):
                todo += _inside(each)
    return seen


#: What refers to everything that its module can name, or to the stacks of other ranks.
_LEADING_OUT = (ModuleType, FunctionType, type, FrameType)


def _inside(found: object) -> Iterator[Any]:
    """What a module, a class or a function holds of a program."""
    if isinstance(found, FunctionType):
        owner = owner_of(found.__code__.co_filename)
        if owner != "ours":
            yield from (found.__closure__, found.__defaults__, found.__kwdefaults__, vars(found))
        if owner == "project":
            yield found.__globals__
    elif isinstance(found, ModuleType):
        if _is_project(getattr(found, "__file__", None)):
            yield vars(found)
    elif isinstance(found, type) and _is_project(_file_of(found)):
        yield from vars(found).values()


def _variables() -> Iterator[Iterable[Any]]:
    """The values of variables: of this rank's functions that run now, and of its modules."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if owner_of(frame.f_code.co_filename) not in ("ours", "python"):
            found = frame.f_locals
            yield [*found.values()]
            # Until Python 3.13 the frame keeps this copy, and with it what the function deletes.
            if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
                found.clear()
            if owner_of(frame.f_code.co_filename) == "project":
                yield [*frame.f_globals.values()]
        frame = frame.f_back
    for module in list(sys.modules.values()):
        if _is_project(getattr(module, "__file__", None)):
            yield [*vars(module).values()]


def _is_project(file: object) -> bool:
    return isinstance(file, str) and owner_of(file) == "project"


def _file_of(kind: type) -> str:
    """The file of the module in which a class is defined; "" if this is not known."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file if isinstance(file, str) else ""
