"""Computes the public names of classes and functions."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

_names: dict[Any, str] = {}
_apis: dict[tuple[Any, str, frozenset[str]], str] = {}


def public_name(cls: Any) -> str:
    """The shortest dotted name of a class: `torch.nn.Linear`, and `float` for a built-in one."""
    known = _names.get(cls)
    if known is None:
        known = _names[cls] = _public_name(cls)
    return known


def _public_name(cls: Any) -> str:
    module, name = str(cls.__module__), str(cls.__qualname__)
    if module == "builtins":
        return name
    levels = module.split(".")
    # Some classes are also in torch itself: torch.amp.GradScaler is torch.GradScaler.
    first = 2 if levels[0] == "torch" and len(levels) > 1 else 1
    for count in range(first, len(levels) + 1):
        shorter = ".".join(levels[:count])
        found: object = sys.modules.get(shorter)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is cls:
            return f"{shorter}.{name}"
    return f"{module}.{name}"


def error_name(cls: type[BaseException]) -> str:
    """The qualified name of an exception's class, such as `builtins.ValueError`."""
    return f"builtins.{cls.__qualname__}" if cls.__module__ == "builtins" else public_name(cls)


def method_api(cls: Any, method: str, libraries: frozenset[str]) -> str:
    """The name of a method called on an instance of `cls`, such as `torch.optim.Adam.step`.

    The class in the name is the first in `cls.__mro__` that one of the libraries defines.  So the
    method of a program's own subclass has the name of the library's class.
    """
    key = cls, method, libraries
    known = _apis.get(key)
    if known is None:
        mine = (each for each in cls.__mro__ if belongs(each.__module__, libraries))
        known = _apis[key] = f"{public_name(next(mine, cls))}.{method}"
    return known


def library_of(name: str) -> str:
    """The library of an API or a module: the longest prefix of the name that is a loaded module.

    The first part of the name is not enough: a program may be a module of the same package as the
    library that it uses.
    """
    parts = name.partition("*")[0].rstrip(".").split(".")
    for count in range(len(parts), 0, -1):
        if ".".join(parts[:count]) in sys.modules:
            return ".".join(parts[:count])
    return parts[0]


def belongs(name: str, libraries: Collection[str]) -> bool:
    """Whether a module or an API is one of the libraries, or lies below one."""
    return any(name == each or name.startswith(f"{each}.") for each in libraries)
