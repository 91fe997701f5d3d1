"""Reads the state of torch's CPU generator from its memory.

`torch.Generator.get_state` makes a tensor of 5056 bytes each time. The ledger reads the state
before and after every draw, and mostly needs to know only whether and how far the generator
advanced.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import NamedTuple

import torch
import xxhash

from pytest_trainsafe.compat.tensors import ADDRESSES, address_of
from pytest_trainsafe.trace.rng.states import (
    CPU_ASIDE,
    CPU_BLOCK,
    CPU_BYTES,
    CPU_NAMED,
    state_text,
)

#: torch's engine (`at::mt19937_data_pod`): the seed, how many numbers of the block are left, a
#: flag, the index of the next number, and the block of 624 numbers of 4 bytes each.
_HEAD = struct.Struct("<Qi?xxxI")
_NUMBERS = 624
_NEXT = 16

#: How many of its first numbers identify a block, as in `trace/rng/states.py`.
_NAMING = (CPU_NAMED - CPU_BLOCK) // 8

#: How many bytes from the beginning of a generator the engine is searched in.
_SEARCHED = 512

#: The size in bytes of the two cached normal numbers that follow the engine, an `optional<float>`
#: and an `optional<double>`.
_ASIDE = 28

_NARROW, _WIDE = struct.Struct(f"<{_NAMING}I"), struct.Struct(f"<{_NAMING}Q")


class _Layout(NamedTuple):
    """Where a CPU generator holds its state in memory.

    `engine` is the offset of its random engine. `aside` are the offsets, counted from the engine's
    end, of the flags of the two cached normal numbers.
    """

    engine: int
    aside: tuple[int, int]


class CpuMemory:
    """The memory of one CPU generator, which must outlive this object. Made by `memory_of`.

    The generator computes blocks of 624 random numbers. `read` returns its position in the current
    block and the first numbers of this block, as bytes. Equal bytes mean equal states. No other
    thread may draw from the generator during a call.
    """

    def __init__(self, generator: torch.Generator, layout: _Layout) -> None:
        begin = address_of(generator) + layout.engine
        size = _HEAD.size + 4 * _NUMBERS
        memory = (ctypes.c_ubyte * (size + _ASIDE)).from_address(begin)
        whole = memoryview(memory).cast("B")
        self._engine = whole[:size]
        self._named = whole[_NEXT : _HEAD.size + 4 * _NAMING]
        self._aside = whole[size:]
        self._float, self._double = layout.aside

    def read(self) -> bytes | None:
        """The state; None while a normal number is cached, which the bytes do not contain."""
        if self._aside[self._float] or self._aside[self._double]:
            return None
        return bytes(self._named)

    def copy(self, into: bytearray | None = None) -> bytearray:
        """A copy of the whole engine, written to `into` if that is given."""
        if into is None:
            return bytearray(self._engine)
        into[:] = self._engine
        return into


def memory_of(generator: torch.Generator) -> CpuMemory | None:
    """The memory of a CPU generator; None if reading it does not agree with `get_state`."""
    layout = _layout()
    if layout is None:
        return None
    memory = CpuMemory(generator, layout)
    state = generator.get_state()
    engine = whole_state(memory.copy())[:CPU_ASIDE]
    read, expected = memory.read(), state_text(state)
    same = expected.count(".") == 2 if read is None else text(read) == expected
    return memory if same and torch.equal(engine, state[:CPU_ASIDE]) else None


@functools.lru_cache(maxsize=1024)
def text(read: bytes) -> str:
    """The text of a state that `CpuMemory.read` returned, as `states.state_text` makes it."""
    [place] = struct.unpack_from("<I", read)
    return f"{_block(read[4:])}.{place}"


@functools.lru_cache(maxsize=64)
def _block(numbers: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(_WIDE.pack(*_NARROW.unpack(numbers)))


def whole_state(engine: bytes | bytearray) -> torch.Tensor:
    """The tensor that `get_state` returns for this engine if no normal number is cached."""
    seed, left, seeded, place = _HEAD.unpack_from(engine)
    numbers = struct.unpack_from(f"<{_NUMBERS}I", engine, _HEAD.size)
    state = bytearray(CPU_BYTES)
    struct.pack_into(f"<QiiQ{_NUMBERS}Q", state, 0, seed, left, seeded, place, *numbers)
    return torch.frombuffer(state, dtype=torch.uint8)


@functools.cache
def _layout() -> _Layout | None:
    """The layout of generators in this torch; None if reading by it does not match `get_state`."""
    probe = torch.Generator().manual_seed(0x5AFE_0123_4567)
    torch.empty(700, dtype=torch.int32).random_(generator=probe)
    clear = probe.get_state()
    if len(clear) != CPU_BYTES:
        return None
    address = address_of(probe)
    if not ADDRESSES.available:
        return None
    numbers = struct.unpack_from(f"<{_NAMING}Q", clear.numpy().data, CPU_BLOCK)
    begin = ctypes.string_at(address, _SEARCHED).find(_NARROW.pack(*numbers)) - _HEAD.size
    size = _HEAD.size + 4 * _NUMBERS
    if begin < 0 or not torch.equal(whole_state(ctypes.string_at(address + begin, size)), clear):
        return None
    # Compare again after further draws: what was found may be a copy that does not change.
    torch.empty(700, dtype=torch.int32).random_(generator=probe)
    clear = probe.get_state()
    if not torch.equal(whole_state(ctypes.string_at(address + begin, size)), clear):
        return None

    def changed(state: torch.Tensor) -> list[int]:
        """The places in the memory behind the engine where a byte changes from 0 to 1.

        Compares the memory of the generator `probe` in two states: `clear`, in which no normal
        number is cached, and `state`. Sets `probe` to each of them to read its memory, and then to
        `clear` again. A place is an offset from the end of the engine.
        """
        probe.set_state(clear)
        without = ctypes.string_at(address + begin + size, _ASIDE)
        probe.set_state(state)
        with_it = ctypes.string_at(address + begin + size, _ASIDE)
        probe.set_state(clear)
        pairs = zip(without, with_it, strict=True)
        return [place for place, (was, now) in enumerate(pairs) if (was, now) == (0, 1)]

    # 2.0 has no byte that is 1, so only the flag is found. The last eight bytes of a state are a
    # float and its flag.
    single = clear.clone()
    struct.pack_into("<f?", single.numpy().data, CPU_BYTES - 8, 2.0, True)
    # Before them are three doubles and their flag.
    double = clear.clone()
    struct.pack_into("<ddd?", double.numpy().data, CPU_ASIDE, 0.0, 2.0, 0.0, True)
    found = changed(single), changed(double)
    if any(len(places) != 1 for places in found) or found[0] == found[1]:
        return None
    return _Layout(begin, (found[0][0], found[1][0]))


_layout()  # at the import, which the ranks of a fork server share
