"""Notes which context managers a program has entered, such as `no_sync`, and its own.

Noted are functions with `contextlib.contextmanager` that code outside of torch and of the standard
library enters, classes of context managers in the program's own modules, and torch's `Join`.
`no_grad`, `inference_mode` and `autocast` have meta variables of their own.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.judges.learn.instrument.names import belongs

#: The most names of context managers that are noted, and the longest name.
_MOST, _LONGEST = 64, 80
#: The most that are noted at a time: some may never be left.
_DEEPEST = 1024

#: This package's own context managers are not the program's, except those of its examples.
_OWN, _EXAMPLES = "pytest_trainsafe", ("reference_models", "fixtures")

#: The class of what functions with `contextlib.contextmanager` return.
_GENERATED: Any = type(contextlib.contextmanager(lambda: iter(()))())

_JOIN = "torch.distributed.algorithms.join"


class Contexts(threading.local):
    """The context managers that a thread has entered and not left.

    `names` are their names in order.  `join` numbers the uses of torch's `Join`, in which ranks
    may train for different numbers of steps; it is None outside of one.
    """

    def __init__(self) -> None:
        self._entered: dict[int, tuple[object, str]] = {}
        self._known: dict[str, None] = {}
        self._joins = 0
        self.names: tuple[str, ...] = ()
        self.join: int | None = None

    def enter(self, manager: object, name: str, joins: bool = False) -> None:
        """A context manager was entered."""
        if joins:
            self._joins += 1
            self.join = self._joins
        name = name[:_LONGEST]
        many = len(self._known) >= _MOST and name not in self._known
        if many or len(self._entered) >= _DEEPEST:
            return
        self._known[name] = None
        self._entered[id(manager)] = manager, name  # kept, so that its id stays its own
        self._sort()

    def leave(self, manager: object, joins: bool = False) -> None:
        """A context manager was left; one that was not noted is none."""
        if joins:
            self.join = None
        if self._entered.pop(id(manager), None) is not None:
            self._sort()

    def _sort(self) -> None:
        self.names = tuple(sorted({name for _, name in self._entered.values()}))


class _Active:
    """Holds what notes context managers in this process, or None."""

    contexts: Contexts | None = None


@contextlib.contextmanager
def noting(contexts: Contexts) -> Iterator[None]:
    """Note context managers in a `with` block."""
    exchanged: list[tuple[Any, str, Any, Any]] = []
    join = getattr(sys.modules.get(_JOIN), "Join", None)
    replacing(_Active, "contexts")
    _Active.contexts = contexts
    try:
        for cls in (_GENERATED, *([join] if isinstance(join, type) else []), *_own_classes()):
            for name, wrap in (("__enter__", _entering), ("__exit__", _leaving)):
                replacing(cls, name)
                original = vars(cls)[name]
                wrapper = wrap(original)
                exchanged.append((cls, name, original, wrapper))
                setattr(cls, name, wrapper)
        yield
    finally:
        _Active.contexts = None
        for cls, name, original, wrapper in reversed(exchanged):
            if vars(cls).get(name) is wrapper:
                setattr(cls, name, original)


# torch.compile reads all variables of a closure, so the wrappers have no others than `original`.


def _entering(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def entered(manager: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(manager)
        # Entering deletes the function from what it has made.
        name = _name_of(manager)
        result = original(manager)
        if name and _Active.contexts is not None:
            _Active.contexts.enter(manager, name, type(manager).__module__ == _JOIN)
        return result

    return entered


def _leaving(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def left(manager: Any, *error: Any) -> Any:
        if not torch.compiler.is_compiling() and _Active.contexts is not None:
            _Active.contexts.leave(manager, type(manager).__module__ == _JOIN)
        return original(manager, *error)

    return left


def _name_of(manager: Any) -> str:
    """The name of a context manager; "" if it is not to be noted."""
    generated = isinstance(manager, _GENERATED)
    name = _name_of_generated(manager) if generated else type(manager).__qualname__
    return name.rpartition("<locals>.")[2]


def _own_classes() -> list[type]:
    found = []
    libraries = _library_folders()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or _is_of_library(name, file, libraries):
            continue
        for cls in list(vars(module).values()):
            if issubclass(type(cls), type) and cls.__module__ == name:
                ways = vars(cls).get("__enter__"), vars(cls).get("__exit__")
                if all(map(inspect.isfunction, ways)):
                    found.append(cls)
    return list(dict.fromkeys(found))


@functools.cache
def _is_of_library(name: str, file: str, libraries: tuple[str, ...]) -> bool:
    top, _, rest = name.partition(".")
    if top == _OWN:
        return not belongs(rest, _EXAMPLES)
    return top in sys.stdlib_module_names or file.startswith(libraries)


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths["purelib"], paths["platlib"], paths["stdlib"], *site.getsitepackages()})


def _name_of_generated(manager: Any) -> str:
    """The name of the function that made a context manager; "" if it is not to be noted."""
    function = getattr(manager, "func", None)
    module = str(getattr(function, "__module__", ""))
    if function is None or (_is_internal(module) and not belongs(module, ("torch",))):
        return ""
    frame = inspect.currentframe()
    while frame is not None and _module(frame) in (__name__, "contextlib"):
        frame = frame.f_back
    if frame is None or _is_internal(_module(frame)):
        return ""
    return str(function.__qualname__)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_internal(module: str) -> bool:
    """Whether a module is one of torch, of the standard library, or of this package."""
    top, _, rest = module.partition(".")
    if top == _OWN:
        return not belongs(rest, _EXAMPLES)
    return top == "torch" or top in sys.stdlib_module_names
