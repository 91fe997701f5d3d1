"""Uninterpreted functions: keyed hashes of exact numbers, which depend on the name and the seed.

A function about which nothing is known but its name equals itself on equal arguments.  A keyed
hash is such a function: its results on different arguments are as good as independent, uniform
random numbers.  Hence functions of different arguments differ, but with probability 2**-61.
"""

from __future__ import annotations

import hashlib

import torch

from pytest_trainsafe.arithmetic.packing import PRIMES, pack


class Hashes:
    """The uninterpreted functions of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._keys: dict[str, int] = {}
        #: How many values were computed.
        self.count = 0

    def __call__(self, name: str, *arguments: torch.Tensor) -> torch.Tensor:
        """The function `name` of float64 arguments, which broadcast, by elements and bits."""
        state = torch.tensor(self._key(name))
        for argument in arguments:
            state = _mix(state * 3 + _mix(argument.view(torch.int64) * _GOLDEN + self._key("+")))
        self.count += state.numel()
        first = _right(state, 1) % PRIMES[0]
        return pack(first, _right(_mix(state + self._key("second")), 1) % PRIMES[1])

    def _key(self, name: str) -> int:
        if name not in self._keys:
            text = f"{self.seed}:{name}".encode()
            digest = hashlib.blake2b(text, digest_size=8).digest()
            self._keys[name] = int.from_bytes(digest, "big", signed=True)
        return self._keys[name]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_GOLDEN, _SECOND, _THIRD = map(
    _signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _right(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Bits moved to the right, with zeros from the left."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 64 bits in which every input bit changes half of the output bits.

    It is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", 2014).
    """
    bits = (bits ^ _right(bits, 30)) * _SECOND
    bits = (bits ^ _right(bits, 27)) * _THIRD
    return bits ^ _right(bits, 31)
