"""Records the draws of data loaders' worker processes, and passes them to the rank's ledger.

A worker reads the states of its default generators, and of the generators among the dataset's
attributes, before and after each of its first fetches. For each generator that a fetch advanced,
the worker writes a line into its own file. The rank reads its workers' files between steps.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from pytest_trainsafe.compat import loaders
from pytest_trainsafe.core.untrusted import MALFORMED
from pytest_trainsafe.judges.replay.rng.instrument.frames import place
from pytest_trainsafe.launch.resources import scratch
from pytest_trainsafe.trace.rng.events import NUMPY, PYTHON, TORCH_CPU, WorkerDraw
from pytest_trainsafe.trace.rng.states import (
    NumpyState,
    numpy_random,
    python_state,
    torch_state,
)

#: The most fetches that are recorded for a worker, and iterators of loaders for a rank.
MAX_FETCHES, MAX_LOADERS = 4, 64

#: How deep the attributes of datasets are searched. The transform of the dataset of a subset, for
#: example, has its generator at depth three.
DEPTH = 3

_Reader = Callable[[], str]


class Workers:
    """Follows the workers that one rank's loaders start."""

    def __init__(self) -> None:
        self._scratch: scratch.Scratch | None = None
        self._folder: Path | None = None
        self._loaders = itertools.count()
        self._read: dict[Path, int] = {}

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Follows the workers that are started in this context."""
        try:
            with loaders.replaced_loops(self._watched):
                yield
        finally:
            if self._scratch is not None:
                self._scratch.remove()

    def _watched(self) -> _WatchedLoop | None:
        """The loop of the workers that an iterator is about to start; None for torch's own."""
        number = next(self._loaders)
        if number >= MAX_LOADERS:
            return None
        if self._folder is None:
            self._scratch = scratch.make("workers")
            self._folder = self._scratch.path
        here = place(())
        return _WatchedLoop(str(self._folder), number, here.user or here.at)

    def draws(self) -> list[WorkerDraw]:
        """The draws that workers have recorded since the last call."""
        if self._folder is None:
            return []
        found = []
        for file in sorted(self._folder.iterdir()):
            content = file.read_bytes()
            lines = content[: content.rfind(b"\n") + 1]
            done = self._read.get(file, 0)
            self._read[file] = len(lines)
            for line in lines[done:].splitlines():
                with contextlib.suppress(*MALFORMED):
                    found.append(msgspec.json.decode(line, type=WorkerDraw))
        return found


class _WatchedLoop:
    """Replaces torch's worker loop: runs that loop, and records the draws of the first fetches.

    The rank makes the object, and a worker calls it. A spawned worker receives it pickled. `folder`
    has the files that workers write, `loader` is the number of the iterator that starts the
    workers, and `at` is the line of code that makes this iterator.
    """

    def __init__(self, folder: str, loader: int, at: str) -> None:
        self.folder, self.loader, self.at = folder, loader, at

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        loaders.run_loop(self._around, *args, **kwargs)

    def _around(
        self, worker: int, dataset: Any, map_style: bool, fetch: Callable[[Any], Any]
    ) -> Callable[[Any], Any]:
        return _Watch(self, worker, dataset, map_style).around(fetch)


class _Watch:
    """Reads a worker's generators around its first fetches."""

    def __init__(self, loop: _WatchedLoop, worker: int, dataset: Any, map_style: bool) -> None:
        self._loop, self._worker, self._map_style = loop, worker, map_style
        self._dataset = dataset
        self._fetches = 0
        self._file = Path(loop.folder) / f"{loop.loader}-{worker}-{os.getpid()}.jsonl"

    def around(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wraps `fetch` so that the generators are read before and after it."""

        @functools.wraps(fetch)
        def fetching(index: Any) -> Any:
            if self._fetches >= MAX_FETCHES:
                return fetch(index)
            readers = _readers(self._dataset)
            before = {name: read() for name, read in readers.items()}
            fetched = fetch(index)
            draws = [
                WorkerDraw(
                    self._loop.loader,
                    self._worker,
                    self._fetches,
                    name,
                    was,
                    now,
                    self._loop.at,
                    self._map_style,
                )
                for name, was in before.items()
                if (now := readers[name]()) != was
            ]
            self._fetches += 1
            if draws:
                # The rank may have ended and removed the folder.
                with contextlib.suppress(OSError), self._file.open("ab", buffering=0) as file:
                    file.write(msgspec.json.Encoder().encode_lines(draws))
            return fetched

        return fetching


def _readers(dataset: Any) -> dict[str, _Reader]:
    """Maps the name of each generator that a worker may draw from to a function that reads it.

    The functions return the generators' states as texts.
    """
    readers: dict[str, _Reader] = {
        TORCH_CPU: functools.partial(torch_state, torch.default_generator),
        PYTHON: python_state,
    }
    module = numpy_random()
    if module is not None:
        readers[NUMPY] = NumpyState(module.mtrand._rand._bit_generator).read
    readers |= dict(_held(dataset, type(dataset).__name__, DEPTH, set()))
    return readers


def _held(holder: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, _Reader]]:
    if id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, torch.Generator):
        yield name, functools.partial(torch_state, holder)
    elif isinstance(holder, random.Random):
        yield name, functools.partial(python_state, holder)
    elif type(holder).__module__.startswith("numpy.random"):
        bits = getattr(holder, "bit_generator", None) or getattr(holder, "_bit_generator", None)
        if bits is not None:
            yield name, NumpyState(bits).read
    elif depth and hasattr(holder, "__dict__") and not isinstance(holder, type):
        for attribute, value in list(vars(holder).items()):
            values = value if isinstance(value, list | tuple) and len(value) <= 16 else [value]
            for each in values:
                yield from _held(each, f"{name}.{attribute}", depth - 1, seen)
