"""The text of a first test, and files that are made but never overwritten."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pytest_trainsafe.init.axes import Axes
from pytest_trainsafe.init.program import Found, above_packages, is_own


def create(path: Path, text: str) -> str:
    """Makes a file; returns why it was not made, "" if it was.  An existing file is kept."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return "it exists already"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def beside(found: Found, folder: Path) -> Path:
    """The folder for the test: the program's, or `folder` if the program is an installed one."""
    ours = found.name.startswith("pytest_trainsafe.")
    return found.file.parent if is_own(found.file) and not ours else folder


def path_of_test(found: Found, folder: Path, testpaths: Sequence[Path] = ()) -> Path:
    """The path of the test of a program: `test_train.py` beside `train.py`.

    Where pytest collects from `testpaths` alone, it is in the first of them that exists, if the
    program can be imported from there.
    """
    name = re.sub(r"\W", "_", found.file.stem, flags=re.ASCII)
    near = beside(found, folder) / f"test_{name}.py"
    tests = next((path for path in testpaths if path.is_dir()), None)
    if tests is None or any(near.is_relative_to(path) for path in testpaths):
        return near
    away = tests / near.name
    script = found.declaration.program.script is not None
    return near if script or not _reaches(found, away, _typed(found)) else away


def text_of_test(found: Found, axes: Axes, path: Path) -> str:
    """The text of a test that compares the program at the Points of a first sweep."""
    program = found.declaration.program
    lines = [f'"""Trains {program.name} on several ranks, and compares it with a single device."""']
    name = program.path.rpartition(":")[2]
    if program.script is not None:
        given = f'Script(str(Path(__file__).with_name("{found.file.name}")))'
        lines += ["", "from pathlib import Path"]
        own = "from pytest_trainsafe import Script, assert_trainsafe"
        imports = ["import pytest", "", own]
    elif "." in name or name.startswith("test"):  # pytest would collect such a name as a test
        given = f'"{_module(found, path)}:{name}"'
        imports = ["import pytest", "", "from pytest_trainsafe import assert_trainsafe"]
    else:
        given = name
        own = f"from {_module(found, path)} import {name}"
        imports = ["import pytest", own, "", "from pytest_trainsafe import assert_trainsafe"]
    sweep = "".join(f", {axis}={values}" for axis, values in axes.sweep.items())
    short = re.sub(r"\W", "_", found.file.stem, flags=re.ASCII)
    lines += ["", *imports, "", ""]
    if axes.others:
        named = ", ".join(axes.others)
        lines.append(f"# The program also reads or names {named}: add what it supports.")
    lines += [
        f"@pytest.mark.trainsafe({given}{sweep})",
        f"def test_{short}_trains_like_one_device(candidate_trace, reference_trace):",
        "    assert_trainsafe(candidate_trace, reference_trace)",
        "",
    ]
    return "\n".join(lines)


def _module(found: Found, path: Path) -> str:
    """The name by which the test can import the program's module.

    pytest makes modules importable from the first folder above a test without `__init__.py`.  Where
    the name that the user typed is not found from there, the name relative to that folder is.
    """
    typed, top, file = _typed(found), above_packages(path), _module_path(found)
    if _reaches(found, path, typed) or not file.is_relative_to(top):
        return typed
    near = file.relative_to(top).parts
    return ".".join(near) if near and all(map(str.isidentifier, near)) else typed


def _typed(found: Found) -> str:
    return found.declaration.program.path.partition(":")[0]


def _module_path(found: Found) -> Path:
    return found.file.with_suffix("") if found.file.stem != "__init__" else found.file.parent


def _reaches(found: Found, path: Path, module: str) -> bool:
    """Whether a test at `path` that imports `module` imports the program's file."""
    wanted, parts = _module_path(found), module.split(".")
    return any(
        Path(folder or os.curdir).absolute().joinpath(*parts) == wanted
        for folder in (str(above_packages(path)), *found.importable)
    )
