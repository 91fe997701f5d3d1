"""Finds APIs that the catalogue lacks: a function, a class or a whole library, by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.judges.learn.instrument.names import belongs, public_name
from pytest_trainsafe.judges.learn.instrument.patching.catalogue import CHANGES, PLAIN, Target
from pytest_trainsafe.judges.learn.instrument.patching.selection import resolved

#: The types of a module's attributes that are observed.
_KINDS = (type, FunctionType, BuiltinFunctionType)

#: Special methods that are observed, where a class defines them.
_SPECIAL = ("__init__", "__call__")

#: The most functions and methods of one library that are patched.
MAX_TARGETS = 5000


def named(api: str) -> list[Target]:
    """The functions and methods to patch for an API by name; [] if there is no such API."""
    found = resolved(api)
    if inspect.ismodule(found):
        return list(_of_library(api))[:MAX_TARGETS]
    if isinstance(found, type):
        return list(_of_class(found))
    if not callable(found):
        return []
    head, _, name = api.rpartition(".")
    owner = resolved(head) if head else None
    if owner is None:
        return []
    if isinstance(owner, type) and issubclass(owner, nn.Module) and name == "forward":
        return []  # the catalogue has `nn.Module.__call__`
    role = CHANGES if owner is torch.Tensor or not api.startswith("torch.") else PLAIN
    return [Target(owner, name, api, role)]


def overrides(cls: type, methods: Mapping[tuple[Any, str], Target]) -> Iterator[Target]:
    """Yields the methods of a class and its bases that override one of `methods`.

    `methods` has the observed methods, by class and name.  The overriding methods are observed
    under the name of the overridden method.  Constructors are left out, since they call the
    library's constructor with other arguments.
    """
    for owner in cls.__mro__:
        for attribute, method in list(vars(owner).items()):
            if attribute == "__init__" or (owner, attribute) in methods:
                continue
            if inspect.isfunction(method):
                known = (methods.get((base, attribute)) for base in owner.__mro__[1:])
                target = next(filter(None, known), None)
                if target is not None:
                    yield Target(owner, attribute, target.api, target.role)


def _of_library(name: str) -> Iterator[Target]:
    """Yields the public functions and methods that a library's loaded modules define."""
    seen: set[int] = set()
    for module_name, module in list(sys.modules.items()):
        if module_name != name and not module_name.startswith(f"{name}."):
            continue
        if any(level.startswith("_") for level in module_name.split(".")):
            continue
        for attribute, found in list(vars(module).items()):
            # Only the type is read: deprecated objects warn when their attributes are read.
            if attribute.startswith("_") or not issubclass(type(found), _KINDS):
                continue
            if id(found) in seen or (getattr(found, "__module__", None) or name) != module_name:
                continue
            seen.add(id(found))
            if isinstance(found, type):
                yield from _of_class(found)
            else:
                role = PLAIN if belongs(name, ("torch",)) else CHANGES
                yield Target(module, attribute, f"{module_name}.{attribute}", role)


def _of_class(cls: type) -> Iterator[Target]:
    role = PLAIN if belongs(cls.__module__, ("torch",)) else CHANGES
    for attribute, method in list(vars(cls).items()):
        if attribute.startswith("_") and attribute not in _SPECIAL:
            continue
        if attribute == "__call__" and issubclass(cls, nn.Module):
            continue  # the catalogue has `nn.Module.__call__`
        if attribute == "forward" and issubclass(cls, nn.Module):
            continue
        if not (inspect.isfunction(method) or inspect.ismethoddescriptor(method)):
            continue
        if not issubclass(type(method), staticmethod | classmethod):
            yield Target(cls, attribute, f"{public_name(cls)}.{attribute}", role)
