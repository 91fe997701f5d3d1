"""Keys of tensors' contents: equal numbers in equal order have equal keys, whatever the shape."""

from __future__ import annotations

from typing import TypeGuard

import torch
import xxhash

from pytest_trainsafe.arithmetic import field, rational
from pytest_trainsafe.arithmetic.packing import special, unpack

Key = tuple[str, int, bytes]


def content(x: torch.Tensor) -> Key:
    """A key of the elements in their order, and their number; integers and masks are one kind."""
    if x.is_floating_point():
        kind, bits = "number", x.contiguous().view(torch.int64)
    else:
        kind, bits = "whole", x.to(torch.int64).contiguous()
    return kind, x.numel(), xxhash.xxh3_128_digest(bits.numpy().tobytes())


def multiple(x: torch.Tensor) -> tuple[Key, torch.Tensor] | None:
    """A key that all multiples of a tensor of residues share, and the element to divide by.

    None if it has nothing but zeros, or has infinities.
    """
    if not x.is_floating_point() or not x.numel() or special(x) is not None:
        return None
    flat = x.reshape(-1)
    first, second = unpack(flat)
    usable = ((first != 0) & (second != 0)).nonzero()
    if not usable.numel():
        return None
    lead = flat[usable[0]]
    kind, count, key = content(field.multiply(flat, field.inverse(lead)))
    return ("multiple of a " + kind, count, key), lead[0]


def varies(value: object) -> TypeGuard[torch.Tensor]:
    """Whether a tensor is of numbers that differ, or a number that no constant is, as a loss.

    Zeros in the shape of another tensor say nothing.
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return False
    flat = value.reshape(-1)
    return bool((flat != flat[0]).any()) or (
        flat.numel() == 1 and rational(flat[0].double()) is None
    )
