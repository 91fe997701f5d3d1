"""Bindings: preloaded modules hold functions that a rank replaces only later.

A module with `from torch.distributed import all_reduce` binds what is there when it is imported.
In a fresh rank that is the ledger's function, for every module imported after `rank` has put it
in place.  `note` runs in the server after the preload and remembers the bindings of such modules;
`bind_anew` runs in each forked rank and gives them the functions that are there now.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

#: (the module that binds, the name there, the module that owns the function, its name)
_bindings: list[tuple[ModuleType, str, ModuleType, str]] = []


def note(modules_before: set[str]) -> None:
    """Remember who binds functions of torch.distributed, of the modules imported since."""
    owners = [
        sys.modules["torch.distributed.distributed_c10d"],
        sys.modules["torch.distributed._functional_collectives"],
    ]
    functions: dict[int, tuple[Any, ModuleType, str]] = {
        id(value): (value, owner, name)
        for owner in owners
        for name, value in vars(owner).items()
        if callable(value) and getattr(value, "__module__", None) == owner.__name__
    }
    _bindings.clear()
    for module_name, module in list(sys.modules.items()):
        if module_name in modules_before or module in owners or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            found = functions.get(id(value))
            if found is not None:
                _bindings.append((module, name, found[1], found[2]))


def bind_anew() -> None:
    """Bind what the owners hold now."""
    for module, name, owner, owners_name in _bindings:
        setattr(module, name, getattr(owner, owners_name))
