"""Refuses a program if two files of the project have the name of its module.

Python keeps one module of a name.  If two folders of tests have a `train.py`, the tests of one
folder get the program of the other, or the ranks do.  The same holds for a module that the program
imports.  Called at collection, and by `runs` when a Run is requested.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType

from pytest_trainsafe.core.code_files import is_project_path
from pytest_trainsafe.errors import InvalidProgramError

#: Files with these names are in many folders; pytest and `launch/loading.py` tell them apart.
_MANY = frozenset({"conftest", "__main__"})


def refuse_other_file(program: str, test: str) -> None:
    """Raises InvalidProgramError if the folder of a test file has a namesake of a program's module.

    `program` is the import path "module:function", whose module is imported.  Only a folder on the
    module search path counts: from another folder, Python would not import the namesake.
    """
    folder = os.path.dirname(os.path.realpath(test))
    if folder in map(os.path.realpath, sys.path):
        for name, file, other in _namesakes(program, [folder]):
            raise InvalidProgramError(
                f"program {program!r}: the test has {_short(file)} as the module {name!r}, but the "
                f"file beside the test is {_short(other)}; {_advice(program, name)}"
            )


def refuse_other_file_in_ranks(program: str) -> None:
    """Raises InvalidProgramError if ranks would import a namesake of a program's module."""
    for name, file, other in _namesakes(program, sys.path):
        raise InvalidProgramError(
            f"program {program!r}: the tests have {_short(file)} as the module {name!r}, but the "
            f"ranks would import {_short(other)}, which is found first; {_advice(program, name)}"
        )


def _namesakes(program: str, folders: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Names of imported modules, their files, and the other files found in `folders`."""
    for name, file in _modules(program.partition(":")[0]):
        other = _found(name, folders)
        if other and os.path.realpath(other) != os.path.realpath(file):
            yield name, file, other


def _modules(module: str) -> Iterator[tuple[str, str]]:
    """The module and those from which it has names: top-level names and files of the project."""
    imported, names = sys.modules.get(module), [module]
    for value in [] if imported is None else list(vars(imported).values()):
        if isinstance(value, ModuleType):
            names.append(value.__name__)
        elif isinstance(value, (type, FunctionType)):
            names.append(str(value.__module__))
    for name in dict.fromkeys(each.partition(".")[0] for each in names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and name not in _MANY:
            file = os.path.abspath(file)
            if is_project_path(file):
                yield name, file


def _found(name: str, folders: Iterable[str]) -> str:
    """The file of a module in the first folder that has one; "" if there is none."""
    for folder in folders:
        below = os.path.join(folder, name)
        for file in (os.path.join(below, "__init__.py"), f"{below}.py"):
            if os.path.isfile(file):
                return file
    return ""


def _short(file: str) -> str:
    return min(file, os.path.relpath(file), key=len)


def _advice(program: str, name: str) -> str:
    module, _, function = program.partition(":")
    imported = function.partition(".")[0] if name == module else "..."
    return (
        "Python keeps one module of a name. Give each file a name of its own, or make their "
        "folders packages: put an empty __init__.py into each and write "
        f"`from .{name} import {imported}`"
    )
