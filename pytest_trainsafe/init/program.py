"""Finds the program that `--trainsafe-init` names."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_trainsafe.core.code_files import is_installed, is_stdlib
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import DeclarationError
from pytest_trainsafe.launch import Script
from pytest_trainsafe.sweep.marker import Declaration, read_marker

OPTION = "--trainsafe-init"


@dataclass(frozen=True, slots=True)
class Found:
    """A program, as a marker without axes declares it.

    `file` is the program's source file, and `importable` the module search path without the
    folder in which pytest was started.
    """

    declaration: Declaration
    file: Path
    importable: tuple[str, ...]

    @property
    def name(self) -> str:
        """The program as the user may type it: `package.module:function` or a script's path."""
        return self.declaration.program.path


def find(word: str, folder: Path) -> Found:
    """The program `word`: `package.module:function`, or the path of a script.

    Modules can be imported from `folder`, in which pytest was started, as `python -m pytest` allows
    it.  Raises UsageError, which says what to type or to write instead.
    """
    importable = tuple(sys.path)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    before, colon, name = word.replace("::", ":").rpartition(":")
    if before.endswith(".py"):
        module = module_of(folder / before, folder)
        raise pytest.UsageError(
            f"{OPTION} {shown(word)}: write '{module}:{name}' for a function of a module, or "
            f"{before} for a script"
        )
    if not colon and not word.endswith(".py") and not (folder / word).is_file():
        raise pytest.UsageError(
            f"{OPTION} takes package.module:function, such as '{_module(word)}:train', or the path "
            f"of a script, such as train.py, not {shown(word)}"
        )
    target = word if colon else Script(os.path.relpath(folder / word))
    try:
        declaration = read_marker((target,), {})
    except DeclarationError as error:
        raise pytest.UsageError(f"{OPTION}: {error}{_advice(error, folder)}") from error
    program = declaration.program
    file = program.script.path if program.script is not None else program.file
    return Found(declaration, Path(file).absolute(), importable)


def is_own(file: Path) -> bool:
    """Whether a file is the user's: neither an installed package's nor Python's."""
    return not is_installed(str(file)) and not is_stdlib(str(file))


def module_of(file: Path, folder: Path) -> str:
    """The name by which a file can be imported: from above its packages, or else from `folder`."""
    top = above_packages(file)
    if top == file.parent and file.is_relative_to(folder):
        top = folder
    parts = file.relative_to(top).with_suffix("").parts
    return ".".join(parts) if all(map(str.isidentifier, parts)) else file.stem


def above_packages(file: Path) -> Path:
    """The first folder above a file that has no `__init__.py`."""
    top = file.parent
    while (top / "__init__.py").exists() and top.parent != top:
        top = top.parent
    return top


def _module(word: str) -> str:
    return word if all(map(str.isidentifier, word.split("."))) else "pretrain"


def _advice(error: DeclarationError, folder: Path) -> str:
    cause = error.__cause__
    if isinstance(cause, ModuleNotFoundError) and ".py:" not in str(error):
        return f". Modules of {folder}, in which pytest was started, can be imported"
    if "needs a value for" in str(error):
        return f", or, for {OPTION}, a default in the function's definition"
    return ""
