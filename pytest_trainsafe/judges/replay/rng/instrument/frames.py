"""Finds the line of the program and the module that made a draw, from the frames of the stack.

No hooks are installed on modules, so only draws cost time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Container
from types import CodeType, FrameType
from typing import NamedTuple

from torch import nn

from pytest_trainsafe.compat.modules import CALL
from pytest_trainsafe.core.code_files import PACKAGE, TORCH, owner_of

#: The kinds of a frame, as bits that can be combined.
USER, INSTALLED, MODULE, OPTIMIZER = 1, 2, 4, 8
SAVE, LOAD, CHECKPOINT, INJECTED = 16, 32, 64, 128

#: The recorder's own code that draws: noise, rewritten values and initial values.
_INJECTING = tuple(
    f"{PACKAGE / name}{os.sep}"
    for name in ("judges/compare/instrument", "record/model", "record/training")
)

#: The file names of Python's own code that imports modules.
_IMPORTING = "<frozen importlib."

#: The kinds of each code object, by its address, since hashing a code object takes as long as all
#: the rest. An entry also refers to the object, so that no other one gets its address.
_kinds: dict[int, tuple[int, CodeType]] = {}

#: The lines of instructions, by the address of their code, since Python searches a table for each.
_lines: dict[tuple[int, int], str] = {}


class Place(NamedTuple):
    """The origin of a draw.

    `at` and `user` are lines as in `DrawEvent`, `module` is the innermost watched module, and
    `kinds` combines the bits of all frames on the stack: USER, INSTALLED, MODULE and so on.
    """

    at: str
    user: str
    module: nn.Module | None
    kinds: int


def site() -> tuple[CodeType, int] | None:
    """The innermost instruction of the program or an installed package that led to this call.

    Returns the code object and the index of the instruction in its bytecode. None if there is no
    such instruction, or if it led to this call through a module of torch, such as `nn.Dropout`.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        known = _kinds.get(id(code))
        kind = known[0] if known is not None else _new_kind(code)
        if kind & MODULE:
            return None
        if kind & (USER | INSTALLED):
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def at_import() -> bool:
    """Whether an installed package draws this while it is imported.

    Such draws belong to the package, which may make a name or a table of them, not to the program:
    a process that imported the package before makes none.
    """
    frame: FrameType | None = sys._getframe(1)
    installed = False
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_IMPORTING):
            return installed
        known = _kinds.get(id(code))
        kind = known[0] if known is not None else _new_kind(code)
        if kind & USER:
            return False
        installed = installed or bool(kind & INSTALLED)
        frame = frame.f_back
    return False


def place(modules: Container[nn.Module], *, whole: bool = True, skip: int = 1) -> Place:
    """The place of the code `skip` frames up the stack.

    Its module is the innermost one of `modules` on the stack, or None. Unless `whole` is set,
    the search ends as soon as this module and a line of the user's are found.
    """
    frame: FrameType | None = sys._getframe(skip)
    at = user = ""
    found = 0
    module: nn.Module | None = None
    while frame is not None:
        code = frame.f_code
        known = _kinds.get(id(code))
        kind = known[0] if known is not None else _new_kind(code)
        if kind:
            if kind == MODULE:
                if module is None:
                    # Only here is a variable read.  For that Python makes a dict of all variables
                    # of the frame; these live as long as the call anyway, so the dict keeps no
                    # tensor alive for longer.
                    called = frame.f_locals["self"]
                    module = called if called in modules else None
            elif kind & (USER | INSTALLED):
                if not at:
                    at = _line(frame)
                if kind & USER and not user:
                    user = _line(frame)
                if user and module is not None and not whole:
                    break
            # The recorder's own code counts only if it made the draw itself.
            if not (kind & INJECTED and at):
                found |= kind
        frame = frame.f_back
    return Place(at, "" if user == at else user, module, found)


def _line(frame: FrameType) -> str:
    key = id(frame.f_code), frame.f_lasti
    line = _lines.get(key)
    if line is None:
        line = _lines[key] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return line


def _new_kind(code: CodeType) -> int:
    kind = _kind(code)
    _kinds[id(code)] = kind, code
    return kind


def _kind(code: CodeType) -> int:
    if code is CALL:
        return MODULE
    file, name = code.co_filename, code.co_name
    match owner_of(file):
        case "torch":
            return _kind_in_torch(file[len(TORCH) :].replace(os.sep, "/"), name)
        case "ours":
            return INJECTED if file.startswith(_INJECTING) else 0
        case "none" | "python":
            return 0
        case "project":
            kind = USER
        case "installed" | "wrapper" | "fixture":
            kind = INSTALLED
    return kind | CHECKPOINT if os.path.basename(file) == "checkpointing.py" else kind


def _kind_in_torch(file: str, name: str) -> int:
    if file == "optim/optimizer.py" and name == "wrapper":
        return OPTIMIZER
    if file == "utils/checkpoint.py":
        return CHECKPOINT
    if file == "serialization.py" or file.startswith("distributed/checkpoint/"):
        return {"save": SAVE, "async_save": SAVE, "load": LOAD}.get(name, 0)
    return 0
