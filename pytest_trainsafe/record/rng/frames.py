"""Which line of the program and which module led to a draw, from the frames on the stack.

Only draws pay for it: nothing is installed on modules.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import NamedTuple

from torch import nn

from pytest_trainsafe.core.code_files import PACKAGE, TORCH, is_installed, is_ours, is_stdlib

#: What a frame is; several may hold.
USER, INSTALLED, MODULE, OPTIMIZER = 1, 2, 4, 8
SAVE, LOAD, CHECKPOINT, INJECTED = 16, 32, 64, 128

#: Code of the recorder's that draws for itself: noise, rewritten and initial values.
_INJECTING = tuple(
    f"{PACKAGE / 'record' / name}{os.sep}" for name in ("inject", "model", "training")
)

#: The one frame whose `self` is read: its other variables live as long as the call itself, so
#: that the dict which Python makes of them keeps no tensor alive.
_CALL = nn.Module._wrapped_call_impl.__code__

_kinds: dict[CodeType, int] = {}


class Place(NamedTuple):
    """Where a draw came from: lines as in `DrawEvent`, modules innermost first, kinds of frames."""

    at: str
    user: str
    modules: list[nn.Module]
    kinds: int


def site() -> tuple[CodeType, int] | None:
    """The instruction of the program that led to its caller; None inside of a module's call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code)
        if kind is None:
            kind = _kinds[code] = _kind(code)
        if kind & MODULE:
            return None
        if kind & (USER | INSTALLED):
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def place() -> Place:
    """The place that led to its caller."""
    frame: FrameType | None = sys._getframe(1)
    at = user = ""
    found = 0
    modules: list[nn.Module] = []
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code)
        if kind is None:
            kind = _kinds[code] = _kind(code)
        if kind:
            if kind & MODULE:
                modules.append(frame.f_locals["self"])
            elif kind & (USER | INSTALLED):
                if not at:
                    at = f"{code.co_filename}:{frame.f_lineno}"
                if kind & USER and not user:
                    user = f"{code.co_filename}:{frame.f_lineno}"
            # The recorder's own code counts only where it drew itself.
            if not (kind & INJECTED and at):
                found |= kind
        frame = frame.f_back
    return Place(at, "" if user == at else user, modules, found)


def _kind(code: CodeType) -> int:
    if code is _CALL:
        return MODULE
    file, name = code.co_filename, code.co_name
    if file.startswith(TORCH):
        return _kind_in_torch(file[len(TORCH) :].replace(os.sep, "/"), name)
    if is_ours(file):
        return INJECTED if file.startswith(_INJECTING) else 0
    if file.startswith("<") or is_stdlib(file):
        return 0
    kind = INSTALLED if is_installed(file) else USER
    return kind | CHECKPOINT if os.path.basename(file) == "checkpointing.py" else kind


def _kind_in_torch(file: str, name: str) -> int:
    if file == "optim/optimizer.py" and name == "wrapper":
        return OPTIMIZER
    if file == "utils/checkpoint.py":
        return CHECKPOINT
    if file == "serialization.py" or file.startswith("distributed/checkpoint/"):
        return {"save": SAVE, "async_save": SAVE, "load": LOAD}.get(name, 0)
    return 0
