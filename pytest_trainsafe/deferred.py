"""Stand-ins for public names whose modules import torch, until torch is imported.

A test module that annotates its fixtures with `Traces` is imported at collection, where torch
would cost seconds.  Called by the package's `__getattr__`; once torch is imported, names resolve
to the objects themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

#: Public names whose modules import torch, and whether each is a class.
IMPORTS_TORCH = {
    "Context": True,
    "PerExampleDataset": True,
    "PerExampleDropout": True,
    "ReplayCheckpoint": True,
    "Trace": True,
    "Traces": True,
    "TrainingCheckpoint": True,
    "consistent_tensor": False,
    "context": False,
    "deterministic_runtime": False,
    "fast_forward": False,
    "logical_positions": False,
    "logical_tensor": False,
    "observe": False,
    "per_example_dropout": False,
    "per_example_generator": False,
    "per_example_keys": False,
    "replay_plan": False,
}


#: Called once, when an assertion is first taken from the package: ranks will be needed soon.
first_assertion: Callable[[], None] | None = None


def deferred(home: str, name: str) -> object:
    """A stand-in for the class or function `name`; imports the module `home` when it is used."""
    return _deferred_class(home, name) if IMPORTS_TORCH[name] else _deferred_function(home, name)


class _Deferred(type):
    """The metaclass of stand-ins: attributes, calls and isinstance checks use the real class."""

    _home: str

    def _real(cls) -> Any:
        return getattr(import_module(cls._home), cls.__name__)

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):  # typing and pytest look them up; must not import torch
            raise AttributeError(name)
        return getattr(cls._real(), name)

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return cls._real()(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._real())

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._real())


def _deferred_class(home: str, name: str) -> type:
    return _Deferred(name, (), {"_home": home, "__module__": "pytest_trainsafe"})


def _deferred_function(home: str, name: str) -> object:
    def function(*args: object, **kwargs: object) -> object:
        return getattr(import_module(home), name)(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "pytest_trainsafe"  # ranks import it from there by its name
    function.__doc__ = f"`{home}.{name}`, imported when it is called."
    return function
