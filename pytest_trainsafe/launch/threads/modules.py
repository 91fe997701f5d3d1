"""The modules of the program, of which each rank has its own.

A program may keep what belongs to its rank in the variables of its modules.  So each rank imports
these modules itself, as it would in a process of its own.  Installed packages, the standard library
and this package are imported once for all ranks.
"""

from __future__ import annotations

import sys
from types import ModuleType

from pytest_trainsafe.core.code_files import is_installed, is_ours, is_stdlib


class ProgramModules:
    """Takes the modules of one rank out of `sys.modules` and puts those of another one in.

    Modules that are imported when this object is made, before any rank begins, stay.
    """

    def __init__(self) -> None:
        self._shared = set(sys.modules) - {"__main__"}
        self._main = sys.modules["__main__"]
        self._seen = len(sys.modules)
        self._names: list[str] = ["__main__"]

    def initial(self) -> dict[str, ModuleType]:
        """The modules of a rank that has not begun."""
        return {"__main__": self._main}

    def save(self) -> dict[str, ModuleType]:
        """The program's modules that the current rank has imported."""
        if len(sys.modules) != self._seen:
            self._look()
        return {name: sys.modules[name] for name in self._names if name in sys.modules}

    def restore(self, modules: dict[str, ModuleType]) -> None:
        """Replaces the program's modules by those that another rank has imported."""
        for name in self._names:
            if name not in modules:
                sys.modules.pop(name, None)
        sys.modules.update(modules)
        self._names = list(modules)
        self._seen = len(sys.modules)

    def _look(self) -> None:
        """Finds the program's modules among those that are new."""
        for name, module in list(sys.modules.items()):
            if name not in self._shared and name not in self._names:
                if _is_program(module):
                    self._names.append(name)
                else:
                    self._shared.add(name)
        self._seen = len(sys.modules)


def _is_program(module: object) -> bool:
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None) or getattr(spec, "origin", None)
    if not file:  # a namespace package has the folders in which it was found
        file = next(iter(getattr(module, "__path__", ())), None)
    if not file or file in ("built-in", "frozen"):
        return False
    return not (is_installed(file) or is_stdlib(file) or is_ours(file))
