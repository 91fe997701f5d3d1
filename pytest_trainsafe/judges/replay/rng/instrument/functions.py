"""Intercepts the functions of Python's `random` and of `numpy.random`.

They are replaced by wrappers while a program runs. A function that the program imported from its
module before (`from random import shuffle`) is not replaced. The ledger notices its draws later, by
the generator's changed state, and does not know their line.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.trace.rng.events import NUMPY, PYTHON
from pytest_trainsafe.trace.rng.states import numpy_random

#: Called instead of a replaced function, with the names of the generator and of the function, and
#: a callable that makes the original call.
Drawing = Callable[[str, str, Callable[[], Any]], Any]

#: Methods of generators that draw nothing.
_NOT_DRAWING = frozenset({"seed", "getstate", "setstate", "get_state", "set_state"})

#: Functions of `numpy.random` that are other names of its method `random_sample`.
_NUMPY_ALIASES = ("ranf", "sample")


#: Every wrapper of this process. They are never freed: torch.compile collects the functions of
#: NumPy's modules once and recognises them by address, so it would take another function at the
#: address of a freed wrapper, such as a module's hook, for one of NumPy's.
wrappers: list[Callable[..., Any]] = []


def drawing_functions(module: Any, generator: type[Any]) -> list[str]:
    """The functions of a module that draw from its global generator, of the class `generator`.

    They have the names of the generator's methods.
    """
    methods = {name for name in dir(generator) if callable(getattr(generator, name))}
    names = methods - _NOT_DRAWING
    return sorted(name for name in names if not name.startswith("_") and hasattr(module, name))


class Functions:
    """The wrappers of one rank.

    `drawing` is called for each draw, and `made` with each generator that `default_rng`
    creates.
    """

    def __init__(self, drawing: Drawing, made: Callable[[Any], None]) -> None:
        self._drawing: Drawing | None = drawing
        self._made: Callable[[Any], None] | None = made
        self._originals: list[tuple[Any, str, Any]] = []
        self._with_numpy = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces the functions, and restores them at the end."""
        for name in drawing_functions(random, random.Random):
            self._exchange(random, name, self._draws(PYTHON, f"random.{name}"))
        self.install_numpy()
        try:
            yield
        finally:
            for module, name, original in reversed(self._originals):
                setattr(module, name, original)
            # The wrappers are never freed, but the ledger that they refer to can be.
            self._drawing = self._made = None

    def install_numpy(self) -> None:
        """Replaces NumPy's functions, once the program has imported them."""
        module = numpy_random()
        if self._with_numpy or not hasattr(module, "default_rng"):
            return
        self._with_numpy = True
        for name in (*drawing_functions(module, module.RandomState), *_NUMPY_ALIASES):
            self._exchange(module, name, self._draws(NUMPY, f"numpy.random.{name}"))
        self._exchange(module, "default_rng", self._makes)

    def _exchange(self, module: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        original = getattr(module, name, None)
        if original is not None:
            self._originals.append((module, name, original))
            wrappers.append(wrapper(original))
            replacing(module, name)
            setattr(module, name, wrappers[-1])

    def _draws(self, generator: str, name: str) -> Callable[[Any], Any]:
        def wrapper(original: Any) -> Any:
            @functools.wraps(original)
            def drawing(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or self._drawing is None:
                    return original(*args, **kwargs)
                return self._drawing(generator, name, lambda: original(*args, **kwargs))

            # Pickled by this name, it becomes the original function in another process.
            drawing.__module__, _, drawing.__qualname__ = name.rpartition(".")
            return drawing

        return wrapper

    def _makes(self, original: Any) -> Any:
        @functools.wraps(original)
        def making(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if self._made is not None:
                self._made(made)
            return made

        return making
