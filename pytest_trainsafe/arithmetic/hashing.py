"""Uninterpreted functions: keyed hashes of exact numbers, which depend on the name and the seed.

A function about which nothing is known but its name equals itself on equal arguments.  A keyed
hash is such a function: its results on different arguments are as good as independent, uniform
random numbers.  Hence functions of different arguments differ, but with probability 2**-61.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from pytest_trainsafe.arithmetic.packing import BITS, PRIMES, Bits, bits_of, numbers_of

Unsigned = npt.NDArray[np.uint64]

_27, _30, _31 = map(np.uint64, (27, 30, 31))
_GOLDEN, _SECOND, _THIRD = map(
    np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class Hashes:
    """The uninterpreted functions of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._keys: dict[str, np.uint64] = {}
        #: How many values were computed.
        self.count = 0

    def __call__(self, name: str, *arguments: torch.Tensor) -> torch.Tensor:
        """The function `name` of float64 arguments, which broadcast, by elements and bits."""
        return numbers_of(self.of(name, *map(bits_of, arguments)))

    def of(self, name: str, *arguments: Bits) -> Bits:
        """The same of bits."""
        shape = np.broadcast_shapes(*(each.shape for each in arguments))
        state = np.array([self._key(name)], dtype=np.uint64)
        for argument in arguments:
            # A number without dimensions is one of an array: numpy warns of a scalar's overflow.
            bits = argument.view(np.uint64).reshape(argument.shape or 1)
            state = _mix(state * 3 + _mix(bits * _GOLDEN + self._key("+")))
        self.count += state.size
        first = (state >> 1) % PRIMES[0]
        second = (_mix(state + self._key("second")) >> 1) % PRIMES[1]
        found: Bits = (first << BITS | second).view(np.int64).reshape(shape)
        return found

    def _key(self, name: str) -> np.uint64:
        if name not in self._keys:
            text = f"{self.seed}:{name}".encode()
            digest = hashlib.blake2b(text, digest_size=8).digest()
            self._keys[name] = np.uint64(int.from_bytes(digest, "big"))
        return self._keys[name]


def _mix(bits: Unsigned) -> Unsigned:
    """A bijection of 64 bits in which every input bit changes half of the output bits.

    It is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", 2014).
    """
    for places, factor in ((_30, _SECOND), (_27, _THIRD)):
        bits = (bits ^ bits >> places) * factor
    return bits ^ bits >> _31
