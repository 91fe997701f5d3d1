"""Classifies files: the project's, this package's, torch's, another package's, or Python's.

Also finds the lines of the project on the stack.  Used in the ranks and in the test process; does
not import torch.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType
from typing import Literal

from pytest_trainsafe.core.links import unlinked

#: The folders of this package whose code runs in the ranks.
RANK_SIDE = (
    *("align", "annotations", "arithmetic", "compat", "core", "frameworks"),
    *("launch", "record", "sweep", "trace"),
    *("judges/compare/events", "judges/compare/instrument"),
    *("judges/learn/events", "judges/learn/instrument"),
    *("judges/metamorphic/relations", "judges/replay/per_example"),
    *("judges/replay/checkpoints/events", "judges/replay/checkpoints/instrument"),
    *("judges/replay/determinism/instrument", "judges/replay/resume/instrument"),
    *("judges/replay/rng/instrument", "judges/replay/schedules/instrument"),
)

#: This package's own folder.
PACKAGE = Path(__file__).parents[1]

_OURS = tuple(f"{PACKAGE / name}{os.sep}" for name in RANK_SIDE)

#: Framework folders that wrap the functions of `torch.distributed`.
_LAYERS = (os.path.join(os.sep, "deepspeed", "comm", ""),)

_STDLIB = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def _folder_of_torch() -> str:
    spec = importlib.util.find_spec("torch")  # does not import it
    return os.path.dirname(spec.origin) + os.sep if spec is not None and spec.origin else os.sep


#: torch's folder, with a trailing separator.
TORCH = _folder_of_torch()


@cache
def _fixtures() -> str:
    """The folder of this package's loops for frameworks, with a trailing separator."""
    [folder] = unlinked([str(PACKAGE / "fixtures")])
    return folder + os.sep


def is_fixture(file: str) -> bool:
    """Whether the file has one of this package's loops, which train a user's model."""
    return file.startswith(_fixtures())


def is_ours(file: str) -> bool:
    """Whether the file belongs to the part of this package that runs in the ranks."""
    return file.startswith(_OURS)


def passes_on(file: str) -> bool:
    """Whether the file only passes collectives on: it is ours, or a framework's wrapper."""
    return is_ours(file) or any(layer in file for layer in _LAYERS)


def is_stdlib(file: str) -> bool:
    """Whether the file belongs to the standard library.  Compares text; resolves no links."""
    return file.startswith(_STDLIB) and not is_installed(file)


def is_installed(file: str) -> bool:
    """Whether the file belongs to an installed package."""
    return any(folder in file for folder in _INSTALLED)


#: Whose code a file contains.  "none" is code without a file, such as generated code, "wrapper" is
#: a framework's wrapper of `torch.distributed`, and "fixture" is one of this package's loops.
Owner = Literal["none", "ours", "fixture", "torch", "wrapper", "python", "installed", "project"]


#: The name of functions of this package that replace one that the program calls, and call it.
STANDS_IN = "stands_in"


@lru_cache(maxsize=4096)  # names of generated code are not bounded
def owner_of(file: str) -> Owner:
    """Whose code the `co_filename` of a code object contains.  Resolves no links."""
    if file.startswith("<"):
        return "none"
    if is_ours(file):
        return "ours"
    if is_fixture(file):
        return "fixture"
    if file.startswith(TORCH):
        return "torch"
    if passes_on(file):
        return "wrapper"
    if is_installed(file):
        return "installed"
    return "python" if is_stdlib(file) else "project"


def calling_frames(frame: FrameType | None) -> Iterator[tuple[FrameType, Owner]]:
    """The frames from `frame` outwards of the project, installed packages, and this package.

    Those of this package include its loops for frameworks (owner "fixture").
    """
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if owner in ("project", "installed", "fixture", "ours"):
            yield frame, owner
        frame = frame.f_back


def line_of(frame: FrameType) -> str:
    """The line that a frame executes, as "file:line"."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def project_line() -> str:
    """file:line of the innermost frame of the project's code on the stack; "" if there is none."""
    frames = calling_frames(sys._getframe(1))
    return next((line_of(frame) for frame, owner in frames if owner == "project"), "")


def calling_lines() -> tuple[str, str]:
    """file:line of the caller of torch or this package, and of the project's code that led to it.

    The first is the innermost caller outside of torch, this package, frameworks' wrappers of
    `torch.distributed` and the standard library (`contextlib`).  If there is none, it is the
    innermost line of this package's loops for frameworks, or else the outermost line of the stack,
    as in autograd's own threads.  The second is "" if the caller is the
    project's own code, or if the stack has no code of the project.
    """
    site = loop = ""
    for frame, owner in calling_frames(sys._getframe(1)):
        if owner == "fixture":
            loop = loop or line_of(frame)
        elif owner != "ours":
            line = line_of(frame)
            site = site or line
            if owner == "project":
                return site, "" if line == site else line
    return site or loop or line_of(_outermost(sys._getframe(1))), ""


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


#: Functions of torch, by file, that only call the function they were given.
_CALLERS = {
    ("nn/modules/module.py", "_wrapped_call_impl"),
    ("nn/modules/module.py", "_call_impl"),
    ("nn/modules/module.py", "inner"),
    ("nn/modules/container.py", "forward"),
    ("utils/_contextlib.py", "decorate_context"),
    ("distributed/c10d_logger.py", "wrapper"),
    ("optim/optimizer.py", "wrapper"),
    ("optim/optimizer.py", "_use_grad"),
    ("optim/lr_scheduler.py", "wrapper"),
    ("_dynamo/eval_frame.py", "_fn"),
    ("_dynamo/eval_frame.py", "fn"),
    ("_compile.py", "inner"),
    ("autograd/function.py", "apply"),
    ("autograd/graph.py", "_engine_run_backward"),
    ("autograd/__init__.py", "backward"),
    ("autograd/grad_mode.py", "decorate_context"),
    ("amp/autocast_mode.py", "decorate_autocast"),
    ("amp/autocast_mode.py", "decorate_fwd"),
    ("amp/autocast_mode.py", "decorate_bwd"),
}
_IN_TORCH = f"{os.sep}torch{os.sep}"


def only_calls(file: str, function: str) -> bool:
    """Whether a stack frame only calls the next one, as wrappers in torch and in this package do.

    Without such frames a traceback is easier to read, and when it is shortened, it keeps more
    of the program's own frames.
    """
    if is_ours(file):
        return True
    _, found, inner = file.rpartition(_IN_TORCH)
    return bool(found) and (inner.replace(os.sep, "/"), function) in _CALLERS


_SUFFIXES = tuple(importlib.machinery.all_suffixes())


def is_project(file: Path) -> bool:
    """Whether a file belongs to the project under test: neither installed nor Python's own."""
    return is_project_path(str(file))


def is_project_path(file: str) -> bool:
    """`is_project` of a path as text."""
    # Every module of a process is tested, and building Paths would dominate.
    if {"site-packages", "dist-packages"} & {*file.split(os.sep)}:
        return False
    return not file.startswith(_standard_prefixes())


def is_standard(file: Path) -> bool:
    """Whether a file belongs to the standard library.

    A folder of the standard library may be a link, as in a virtual environment; files in the folder
    that the link points to belong to the standard library too.  Installed packages do not.
    """
    parts = set(file.parts)
    if {"site-packages", "dist-packages"} & parts:
        return False
    return any(file.is_relative_to(folder) for folder in _standard_folders())


@cache
def _standard_folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib")
    # A virtual environment shares the base installation's library, possibly through links.
    found = [Path(sysconfig.get_path(name)) for name in names] + [Path(os.__file__).parent]
    return tuple({*found, *(path.resolve() for path in found)})


@cache
def _standard_prefixes() -> tuple[str, ...]:
    return tuple(f"{folder}{os.sep}" for folder in _standard_folders())


def loaded_files() -> list[str]:
    """The sorted files of the project that this process has imported.  Called in the ranks."""
    found = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(_SUFFIXES):
            path = file if os.path.isabs(file) and os.pardir not in file else os.path.abspath(file)
            # Not every `__file__` is a file: that of torch.ops is "_ops.py".
            if is_project_path(path) and os.path.isfile(path):
                found.add(path)
    return sorted(found)


def relative(source: str) -> str:
    """A "path:line" relative to the working directory, if that is shorter; else unchanged."""
    path, colon, line = source.rpartition(":")
    if not (colon and path and line.isdigit()):
        return source  # not a file: "the backward pass"
    shorter = os.path.relpath(path)
    return f"{shorter if len(shorter) < len(path) else path}:{line}"
