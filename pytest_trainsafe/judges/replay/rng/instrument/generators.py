"""Finds the generator that an operator draws from, and names the generators of a rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pytest_trainsafe.compat.tensors import address_of
from pytest_trainsafe.record.program_dtype.random_operators import NOT_SUBCLASSES, PLAIN
from pytest_trainsafe.trace.rng.events import NUMPY, PYTHON, TORCH_CPU, LedgerGap
from pytest_trainsafe.trace.rng.states import NumpyState, PythonState, numpy_random

#: The most generators from `numpy.random.default_rng` whose states are read.
MAX_NUMPY = 64

#: The most generators of the program whose names are remembered.
MAX_NAMES = 4096


def generator_of(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Generator | LedgerGap | None:
    """The generator that an operator with these arguments draws from; None if it draws from none.

    The operator draws from the generator among its arguments, else from the default generator of
    its device. Returns a LedgerGap if the device's default generator cannot be read: on any device
    other than CPU, CUDA and meta.
    """
    tensor: torch.Tensor | None = None
    for value in (*args, *kwargs.values()) if kwargs else args:
        # Types are compared exactly: `isinstance` runs Python code for these two classes.
        kind = type(value)
        if kind is torch.Generator:
            return torch.default_generator if is_default(value) else value
        if tensor is None and (
            kind in PLAIN or (kind not in NOT_SUBCLASSES and isinstance(value, torch.Tensor))
        ):
            tensor = value
    if tensor is not None and tensor.is_cpu:
        return torch.default_generator
    device = kwargs.get("device") if tensor is None else tensor.device
    device = device or torch.get_default_device()
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "meta":
        return None
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators: Sequence[torch.Generator] = torch.cuda.default_generators
        return generators[index] if index < len(generators) else None
    return LedgerGap(f"the default generator of {device.type}", "its state is not read")


def is_default(generator: torch.Generator) -> bool:
    """Whether this is torch's default CPU generator, possibly as another Python object."""
    return address_of(generator) == address_of(torch.default_generator)


class Generators:
    """The names of a rank's generators, and the states of those that are not torch's."""

    def __init__(self) -> None:
        # By address: torch makes a new Python object each time it hands a generator to a kernel.
        self._names: dict[tuple[int, int], str] = {}
        self._gaps: set[LedgerGap] = set()
        self._numpy: NumpyState | None = None
        self._python = PythonState()
        self._made: dict[str, NumpyState] = {}

    def name(self, generator: torch.Generator, line: str) -> str:
        """The name in the ledger of a generator that is first used at `line`."""
        if generator is torch.default_generator:
            return TORCH_CPU
        address = address_of(generator)
        if generator.device.type == "cuda" and any(
            address == address_of(default) for default in torch.cuda.default_generators
        ):
            return f"torch {generator.device}"
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        key = address, generator.initial_seed()
        return self._names.setdefault(key, f"torch.Generator of {_short(line)}")

    def first(self, gap: LedgerGap) -> bool:
        """Whether this method has not been called with an equal LedgerGap before."""
        new = gap not in self._gaps
        self._gaps.add(gap)
        return new

    def add_numpy(self, generator: Any, line: str) -> LedgerGap | None:
        """Reads the state of a NumPy generator from now on, unless MAX_NUMPY are read already.

        Returns a LedgerGap for the first generator that is not read for this reason, else None.
        `line` is the line that created the generator.
        """
        if len(self._made) >= MAX_NUMPY:
            # Forget the generators that nothing else refers to any more.
            for name, state in list(self._made.items()):
                if sys.getrefcount(state.bits) <= 2:
                    del self._made[name]
        if len(self._made) >= MAX_NUMPY:
            gap = LedgerGap("some of NumPy's generators", f"there are more than {MAX_NUMPY}")
            return gap if self.first(gap) else None
        name = base = f"numpy.random.Generator of {_short(line)}"
        number = 1
        while name in self._made:
            number += 1
            name = f"{base}, number {number}"
        self._made[name] = NumpyState(generator.bit_generator)
        return None

    def others(self) -> dict[str, str]:
        """The states of Python's and NumPy's default generators, by the generator's name."""
        states = {PYTHON: self.python_state()}
        if numpy_random() is not None:
            states[NUMPY] = self.numpy_state()
        for name, state in self._made.items():
            states[name] = state.read()
        return states

    def python_state(self) -> str:
        """The state of Python's `random`."""
        return self._python.read()

    def numpy_state(self) -> str:
        """The state of NumPy's global generator."""
        bits = numpy_random().mtrand._rand._bit_generator
        if self._numpy is None or self._numpy.bits is not bits:
            self._numpy = NumpyState(bits)
        return self._numpy.read()


def _short(line: str) -> str:
    return os.path.basename(line) if line else "an unknown line"
