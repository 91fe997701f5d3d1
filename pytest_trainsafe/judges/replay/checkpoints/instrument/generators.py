"""Reads, validates and restores the states of random number generators of every kind.

A state is a value that `tree` can encode. A state from a file is first tried on another generator
of the same kind, so that restoring validated states cannot fail halfway.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.trace.rng.events import NUMPY, PYTHON, TORCH_CPU
from pytest_trainsafe.trace.rng.states import (
    NumpyState,
    python_state,
    state_text,
)


class Source:
    """One generator: reads its state, validates another state, and restores it.

    `kind` is stored in a checkpoint: a state is restored only to a generator of the same kind.
    `text` is the state as the RNG ledger writes it.
    """

    def __init__(
        self,
        kind: str,
        read: Callable[[], Any],
        restore: Callable[[Any], object],
        attempt: Callable[[Any], object],
        text: Callable[[], str],
    ) -> None:
        self.kind, self.read, self.restore, self.text = kind, read, restore, text
        self._attempt = attempt

    def fault(self, state: Any) -> str:
        """Why a state cannot be restored to this generator; "" if it can."""
        try:
            self._attempt(state)
        except Exception as error:  # of any class: the state comes from a file
            return f"{type(error).__name__}: {error}"
        return ""


def sources(named: Mapping[str, Any]) -> dict[str, Source]:
    """The default generators of this process and those that the program names.

    Raises ArgumentTypeError for an object whose state cannot be saved, and ArgumentError for a
    name that a default generator has.
    """
    found = {
        TORCH_CPU: _torch(torch.default_generator),
        NUMPY: _numpy_legacy(np.random.mtrand._rand),
        PYTHON: _python(random._inst),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for generator in torch.cuda.default_generators:
            found[f"torch {generator.device}"] = _torch(generator)
    for name, generator in named.items():
        if type(name) is not str or not name:
            raise ArgumentTypeError(
                f"ReplayCheckpoint was given a generator under the name {shown(name)}; a name "
                'must be a text that is not empty, as in generators={"shuffle": generator}'
            )
        if name in found or name.startswith("torch cuda:"):
            raise ArgumentError(
                f"ReplayCheckpoint was given a generator under the name {shown(name)}, which is "
                "reserved for a default generator. Choose another name; default generators are "
                "always saved"
            )
        found[name] = _source(name, generator)
    return found


def _source(name: str, generator: Any) -> Source:
    if isinstance(generator, torch.Generator):
        return _torch(generator)
    if isinstance(generator, np.random.Generator):
        return _numpy(generator.bit_generator)
    if isinstance(generator, np.random.RandomState):
        return _numpy_legacy(generator)
    if isinstance(generator, np.random.BitGenerator):
        return _numpy(generator)
    if isinstance(generator, random.Random) and not isinstance(generator, random.SystemRandom):
        return _python(generator)
    raise ArgumentTypeError(
        f"ReplayCheckpoint was given {shown(generator)} as the generator {name!r}; a generator "
        "must be a torch.Generator, a numpy.random.Generator or RandomState, or a random.Random. "
        "Pass any other object in states=, where each object has state_dict and load_state_dict"
    )


def _torch(generator: torch.Generator) -> Source:
    def attempt(state: Any) -> None:
        torch.Generator(device=generator.device).set_state(state)

    kind = f"torch {generator.device.type}"
    read = generator.get_state
    return Source(kind, read, generator.set_state, attempt, lambda: state_text(read()))


def _numpy_legacy(generator: Any) -> Source:
    """The Source of a RandomState, whose state includes a normal number kept for the next call."""
    bits = generator._bit_generator

    def attempt(state: Any) -> None:
        np.random.RandomState(type(bits)()).set_state(state)

    kind = f"numpy RandomState of {type(bits).__name__}"
    read = functools.partial(generator.get_state, legacy=False)
    return Source(kind, read, generator.set_state, attempt, NumpyState(bits).read)


def _numpy(bits: Any) -> Source:
    def attempt(state: Any) -> None:
        type(bits)().state = state

    def restore(state: Any) -> None:
        bits.state = state

    kind = f"numpy {type(bits).__name__}"
    return Source(kind, lambda: bits.state, restore, attempt, NumpyState(bits).read)


def _python(generator: random.Random) -> Source:
    def read() -> Any:
        version, numbers, aside = generator.getstate()
        return version, np.array(numbers, dtype=np.uint32), aside

    def as_python(state: Any) -> Any:
        version, numbers, aside = state
        return version, tuple(int(number) for number in numbers), aside

    def restore(state: Any) -> None:
        generator.setstate(as_python(state))

    def attempt(state: Any) -> None:
        random.Random(0).setstate(as_python(state))

    return Source("python", read, restore, attempt, lambda: python_state(generator))
