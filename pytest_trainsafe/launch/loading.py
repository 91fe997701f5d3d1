"""Loads and runs the program that a task names.  Called in the ranks."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_trainsafe.errors import ArgumentTypeError
from pytest_trainsafe.launch.task import Function, Script, Task

#: The name under which ranks import the module that the user runs as a script.
_MAIN = "__trainsafe_main__"


def run_task(task: Task) -> Any:
    """Runs the task in this process; returns its function's value, None for a script."""
    sys.path[:] = task.sys_path
    if isinstance(task.target, Script):
        run_script(task.target)
        return None
    return load_function(task.target)(*task.args, **task.kwargs)


def run_script(script: Script) -> None:
    """Runs a script as `python script args` does; `sys.exit(0)` is not a failure."""
    sys.argv[:] = [script.path, *script.args]
    sys.path.insert(0, str(Path(script.path).parent))
    try:
        runpy.run_path(script.path, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise


def load_function(target: Function) -> Callable[..., Any]:
    """Returns the function that `target` names.

    If `target.file` is empty, imports the function's module by name.  It also does so if the module
    of this name is the file `target.file`.  Otherwise, and for `__main__`, loads the module from
    the file.  Raises ArgumentTypeError if the name does not denote a function.
    """
    module_name, _, path = target.name.partition(":")
    found: Any = _module(module_name, target.file)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise ArgumentTypeError(f"{target.name} is {found!r}, not a function")
    return found  # type: ignore[no-any-return]


def defined_at(target: Function | Script) -> tuple[str, int, str] | None:
    """The file, line and name of a program that this process has loaded; None if not known."""
    if isinstance(target, Script):
        return target.path, 1, "<module>"
    module_name, _, path = target.name.partition(":")
    found: Any = sys.modules.get(_MAIN if module_name == "__main__" else module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
    code = getattr(inspect.unwrap(found) if callable(found) else None, "__code__", None)
    if code is None:
        return None
    line = code.co_firstlineno  # that of the first decorator
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return code.co_filename, line, code.co_name


def _module(name: str, file: str) -> ModuleType:
    if not file:
        return importlib.import_module(name)
    if name == "__main__":  # must not run `if __name__ == "__main__"` in the ranks
        return _load_file(_MAIN, file)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin and os.path.realpath(spec.origin) == os.path.realpath(file):
        return importlib.import_module(name)
    return _load_file(name, file)


def _load_file(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file}, the file of module {name}, is not a Python source file")
    _load_packages(name, Path(file))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_packages(name: str, file: Path) -> None:
    """Loads the packages around a module's file, from which its relative imports start.

    pytest imports a package that no entry of `sys.path` has with `--import-mode=importlib`.  The
    packages are those of the dotted name that are the folders around the file; a loaded package of
    such a name with other folders is replaced.
    """
    package, folder = name.rpartition(".")[0], file.parent
    around: list[tuple[str, Path]] = []
    while package and folder.name == package.rpartition(".")[2]:
        around.append((package, folder))
        package, folder = package.rpartition(".")[0], folder.parent
    for package, folder in reversed(around):
        loaded = getattr(sys.modules.get(package), "__path__", ())
        if os.path.realpath(folder) in {os.path.realpath(each) for each in loaded}:
            continue
        init, places = folder / "__init__.py", [str(folder)]
        if not init.exists():
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = places
            continue
        spec = importlib.util.spec_from_file_location(
            package, init, submodule_search_locations=places
        )
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
