"""Intercepts the functions that seed a default generator or set its state, for their line.

A state may be set that an earlier seed began, as a tracker of random streams does with each of its
streams: the line that gave a generator its seed is known by the seed.  Methods of a generator that
the program creates are not intercepted, nor is a function that the program imported from its module
before.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch

from pytest_trainsafe.core.code_files import line_of, owner_of
from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.judges.replay.rng.instrument.functions import wrappers
from pytest_trainsafe.trace.rng.events import NUMPY, PYTHON, TORCH_CPU
from pytest_trainsafe.trace.rng.states import numpy_random

#: The most seeds whose lines are remembered.
MAX_SEEDS = 4096

_TORCH = "torch "
_CUDA = "torch cuda"


class Seeded(NamedTuple):
    """The line that last seeded a generator, and the one that set its state since; "" for none."""

    seeded: str = ""
    restored: str = ""


class Seedings:
    """The calls of one rank that seed a generator, or set its state."""

    def __init__(self) -> None:
        self._last: dict[str, Seeded] = {}
        self._by_seed: dict[int, str] = {}
        self._originals: list[tuple[Any, str, Any]] = []
        self._with_numpy = self._ended = False

    def of(self, generator: str, seed: int | None) -> Seeded:
        """The lines of the generator of a name in the ledger, whose seed is now `seed`."""
        found = self._last.get(generator)
        for kind in (_CUDA, _TORCH):
            if found is None and generator.startswith(kind):
                found = self._last.get(kind)
        if found is None:
            return _UNKNOWN
        if found.restored and seed is not None:
            return found._replace(seeded=self._by_seed.get(seed, ""))
        return found

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces the functions, and restores them at the end."""
        for name, key, restores in _OF_TORCH:
            self._exchange(torch, name, key, restores)
            self._exchange(torch.random, name, key, restores)
        for name, key, restores in _OF_CUDA:
            self._exchange(torch.cuda, name, key, restores)
            self._exchange(torch.cuda.random, name, key, restores)
        self._exchange(random, "seed", PYTHON, False)
        self._exchange(random, "setstate", PYTHON, True)
        self.install_numpy()
        try:
            yield
        finally:
            self._ended = True
            for module, name, original in reversed(self._originals):
                setattr(module, name, original)

    def install_numpy(self) -> None:
        """Replaces NumPy's functions, once the program has imported them."""
        module = numpy_random()
        if not self._with_numpy and hasattr(module, "set_state"):
            self._with_numpy = True
            self._exchange(module, "seed", NUMPY, False)
            self._exchange(module, "set_state", NUMPY, True)

    def _exchange(self, module: Any, name: str, key: str, restores: bool) -> None:
        original = getattr(module, name, None)
        if original is not None:
            self._originals.append((module, name, original))
            replacing(module, name)
            wrappers.append(self._noting(original, key, restores))
            setattr(module, name, wrappers[-1])

    def _noting(self, original: Callable[..., Any], key: str, restores: bool) -> Callable[..., Any]:
        @functools.wraps(original)  # the name is that of core.code_files.STANDS_IN
        def stands_in(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if not (self._ended or torch.compiler.is_compiling()):
                seed = torch.initial_seed() if key == _TORCH else next(iter(args), None)
                self._note(key, restores, _calling_line(sys._getframe(1)), seed)
            return made

        return stands_in

    def _note(self, key: str, restores: bool, line: str, seed: object) -> None:
        if not line:
            return
        if key in (_TORCH, _CUDA):  # of all devices, or all of CUDA's
            for name in [each for each in self._last if each.startswith(key)]:
                del self._last[name]
        if restores:
            before = self._last.get(key, _UNKNOWN)
            self._last[key] = Seeded(before.seeded, line)
            return
        self._last[key] = Seeded(line)
        if len(self._by_seed) < MAX_SEEDS and key in (_TORCH, _CUDA) and isinstance(seed, int):
            self._by_seed[seed] = line


_UNKNOWN = Seeded()

#: The functions of torch, the generators that they concern, and whether they set a known state.
_OF_TORCH = (
    ("manual_seed", _TORCH, False),
    ("seed", _TORCH, False),
    ("set_rng_state", TORCH_CPU, True),
)
_OF_CUDA = (
    ("manual_seed", _CUDA, False),
    ("manual_seed_all", _CUDA, False),
    ("seed", _CUDA, False),
    ("seed_all", _CUDA, False),
    ("set_rng_state", _CUDA, True),
    ("set_rng_state_all", _CUDA, True),
)


def _calling_line(frame: FrameType | None) -> str:
    """The line of the program or of a package that calls; "" if this package does."""
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if owner in ("project", "installed", "fixture"):
            return line_of(frame)
        if owner == "ours":
            return ""
        frame = frame.f_back
    return ""
