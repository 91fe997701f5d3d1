"""Rebinds functions that preloaded modules imported before the ledger replaced them.

`from torch.distributed import all_reduce` binds the function that exists at import time.
In a freshly started rank this is the ledger's wrapper, for every module that is imported after
`rank` installs the ledger.  `note` runs in the server after the preload and records such bindings;
`bind_anew` runs in each forked rank and replaces them by the functions that exist then.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

#: (the importing module, the name there, the module that owns the function, its name)
_bindings: list[tuple[ModuleType, str, ModuleType, str]] = []


def note(modules_before: set[str]) -> None:
    """Records which names in the loaded modules are functions of torch.distributed.

    Skips the modules named in `modules_before`.
    """
    from pytest_trainsafe.compat.distributed import process_groups  # imports torch

    owners = [
        sys.modules["torch.distributed.distributed_c10d"],
        *filter(None, [process_groups.functional_collectives()]),
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
    """Rebinds all recorded names to the functions that torch.distributed has now."""
    for module, name, owner, owners_name in _bindings:
        setattr(module, name, getattr(owner, owners_name))
