"""Finds the schedulers, gradient scalers and samplers of a program, which `ctx.watch` does not get.

Their constructors are intercepted while the program runs. Each object is identified by the order of
creation, which is the same in a Run and in the Run that resumes it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler

from pytest_trainsafe.core.rank.state import replacing

#: Objects of these classes, and of classes derived from them, are found.
CLASSES: tuple[type, ...] = (LRScheduler, GradScaler, Sampler)


class Objects:
    """The objects that the program has created; of samplers, those with a `set_epoch`.

    They are kept alive, because their state is read after the program has returned.  `on_order` is
    called with a sampler when its order of an epoch is asked for.
    """

    def __init__(self, on_order: Callable[[Any], None]) -> None:
        self._made: list[Any] = []
        self._on_order = on_order
        self._replaced: list[tuple[Any, str, Callable[..., Any]]] = []

    def of(self, cls: type) -> list[Any]:
        """The objects of a class, in the order in which they were created."""
        return [each for each in self._made if isinstance(each, cls)]

    @contextlib.contextmanager
    def found(self) -> Iterator[None]:
        """Finds the objects that are created in this context."""
        # Some classes, such as ReduceLROnPlateau, do not call the constructor they inherit.
        for cls in {each: None for base in CLASSES for each in _with_subclasses(base)}:
            self._replace(cls, "__init__", self._watched)
        try:
            yield
        finally:
            while self._replaced:
                cls, name, original = self._replaced.pop()
                setattr(cls, name, original)

    def _replace(self, cls: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Replaces a method that a class itself defines, once."""
        if name in vars(cls) and not any(known[:2] == (cls, name) for known in self._replaced):
            original = vars(cls)[name]
            self._replaced.append((cls, name, original))
            replacing(cls, name)
            setattr(cls, name, around(original))

    def _watched(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def watched(made: Any, *args: Any, **kwargs: Any) -> None:
            if not any(known is made for known in self._made) and _is_wanted(made):
                self._made.append(made)
                if isinstance(made, Sampler):
                    for cls in type(made).__mro__:  # the program's classes are made only now
                        self._replace(cls, "__iter__", self._ordered)
            original(made, *args, **kwargs)

        return watched

    def _ordered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        own = os.getpid()

        @functools.wraps(original)
        def ordered(sampler: Any) -> Any:
            if os.getpid() == own:  # not in the worker of a loader
                self._on_order(sampler)
            return original(sampler)

        return ordered


def named(objects: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Objects with their names: the class, with a number if there are several of the class."""
    counts: dict[str, int] = {}
    for each in objects:
        name = type(each).__name__
        counts[name] = number = counts.get(name, 0) + 1
        yield name if number == 1 else f"{name} {number}", each


def _is_wanted(made: Any) -> bool:
    return not isinstance(made, Sampler) or callable(getattr(made, "set_epoch", None))


def _with_subclasses(cls: Any) -> Iterator[Any]:
    yield cls
    for derived in cls.__subclasses__():
        yield from _with_subclasses(derived)
