"""Turns states of random generators into short texts, whose format `events` defines."""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any

import torch
import xxhash

#: The size and offsets, in bytes, of the state of torch's CPU generator
#: (`at::CPUGeneratorImplState`): the seed, how many numbers of the block are left, a flag, the
#: index of the next number, the block of 624 numbers of 8 bytes each, and cached normal numbers
#: ("aside").
CPU_BYTES, CPU_NEXT, CPU_BLOCK, CPU_ASIDE = 5056, 16, 24, 24 + 624 * 8

#: The end of the first 32 numbers, which identify a block.
CPU_NAMED = CPU_BLOCK + 32 * 8
_NOTHING_ASIDE = bytes(CPU_BYTES - CPU_ASIDE)

#: A Philox generator as bytes: the seed and the offset.
_PHILOX_BYTES = 16

_WORD = struct.Struct("<Q")

#: Python's generator in memory: the position, and 624 numbers of 4 bytes each.
_PYTHON = ctypes.c_ubyte * (625 * 4)

#: NumPy's MT19937 in memory: 624 numbers of 4 bytes each, and the position.
_MT19937 = ctypes.c_ubyte * (624 * 4 + 4)


def torch_state(generator: torch.Generator) -> str:
    """The state of a torch generator, on any device."""
    return state_text(generator.get_state())


def state_text(state: torch.Tensor) -> str:
    """The text for a state that `torch.Generator.get_state` returns."""
    raw = state.numpy().data
    if len(raw) == CPU_BYTES:
        [place] = _WORD.unpack_from(raw, CPU_NEXT)
        block = xxhash.xxh3_64_hexdigest(raw[CPU_BLOCK:CPU_NAMED])
        aside = raw[CPU_ASIDE:]
        if aside == _NOTHING_ASIDE:
            return f"{block}.{place}"
        return f"{block}.{place}.{xxhash.xxh32_hexdigest(aside)}"
    if len(raw) == _PHILOX_BYTES:
        [offset] = _WORD.unpack_from(raw, 8)
        return f"{xxhash.xxh3_64_hexdigest(raw[:8])}.{offset}"
    return xxhash.xxh3_64_hexdigest(raw)


def readable_state(generator: torch.Generator) -> torch.Tensor | None:
    """The generator's state; None if it cannot be read, as while a CUDA graph is captured."""
    try:
        return generator.get_state()
    except RuntimeError:
        return None


def is_fresh(state: str) -> bool:
    """Whether a state is that of a torch generator that has drawn nothing since it was seeded."""
    return state.endswith(".0")


def distance(before: torch.Tensor, after: torch.Tensor, most: int) -> int:
    """How many 32-bit numbers a CPU generator must draw to get from one state to the other.

    The states are tensors from `get_state`. 0 if `after` is not found within `most` numbers.
    """
    assert len(before) == len(after) == CPU_BYTES
    walker = torch.Generator()
    walker.set_state(before)
    wanted = bytes(after.numpy()[CPU_BLOCK:CPU_ASIDE])
    drawn = 0
    while drawn <= most:
        raw = walker.get_state().numpy().data
        [here] = _WORD.unpack_from(raw, CPU_NEXT)
        if raw[CPU_BLOCK:CPU_ASIDE] == wanted:
            [there] = _WORD.unpack_from(after.numpy().data, CPU_NEXT)
            return max(0, drawn + int(there) - int(here))
        # Draw up to the first number of the next block.
        rest = 625 - int(here) if here else 1
        torch.empty(rest, dtype=torch.int32).random_(generator=walker)
        drawn += rest
    return 0


def python_state(generator: random.Random | None = None) -> str:
    """The state of Python's `random`, or of a `random.Random`."""
    _, numbers, aside = (generator or random).getstate()
    block = hash(numbers[:-1]) & 0xFFFFFFFFFFFFFFFF
    state = f"{block:016x}.{numbers[-1]}"
    return state if aside is None else f"{state}.{xxhash.xxh32_hexdigest(repr(aside).encode())}"


class PythonState:
    """Reads the state of Python's `random`, and makes its text anew only if it has changed.

    `getstate` creates an object for each of the generator's 624 numbers. The numbers are therefore
    compared in the generator's memory, if they are found there.
    """

    def __init__(self) -> None:
        self._generator: random.Random = random._inst
        self._memory: memoryview | None = None
        begin, size = object.__basicsize__, ctypes.sizeof(_PYTHON)
        if type(self._generator).__basicsize__ >= begin + size:
            memory = _PYTHON.from_address(id(self._generator) + begin)
            _, numbers, _ = self._generator.getstate()
            if bytes(memory) == struct.pack("=625I", numbers[-1], *numbers[:-1]):
                self._memory = memoryview(memory).cast("B")
        self._raw, self._aside, self._text = b"", None, ""

    def read(self) -> str:
        """The state as it is now."""
        generator = self._generator
        if self._memory is None or type(generator) is not random.Random:
            return python_state()
        aside = generator.gauss_next  # type: ignore[attr-defined]
        if self._memory != self._raw or aside != self._aside:
            self._raw, self._aside = bytes(self._memory), aside
            self._text = python_state()
        return self._text


def numpy_random() -> Any:
    """The module `numpy.random`; None if the program has not imported it."""
    return sys.modules.get("numpy.random")


class NumpyState:
    """Reads the state of a NumPy bit generator, as a text.

    The state of an MT19937 is read from memory, at the address that NumPy provides. This takes
    about a tenth of the time of reading the generator's attribute `state`, which copies 624 numbers
    into a new array. In all other cases, the attribute is read.
    """

    def __init__(self, bits: Any) -> None:
        self.bits = bits
        self._memory = None
        if type(bits).__name__ == "MT19937":
            memory = _MT19937.from_address(bits.ctypes.state_address)
            state = bits.state["state"]
            if bytes(memory) == state["key"].tobytes() + struct.pack("=i", state["pos"]):
                self._memory = memory

    def read(self) -> str:
        """The current state."""
        if self._memory is None:
            return xxhash.xxh3_64_hexdigest(repr(self.bits.state).encode())
        raw = memoryview(self._memory).cast("B")
        [place] = struct.unpack_from("=i", raw, 624 * 4)
        return f"{xxhash.xxh3_64_hexdigest(raw[: 624 * 4])}.{place}"
