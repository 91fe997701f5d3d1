"""The arithmetic of residues packed into float64, as alignment and judging ask for it."""

from __future__ import annotations

from fractions import Fraction

import torch

from pytest_trainsafe.arithmetic import field
from pytest_trainsafe.arithmetic.packing import packed, unpack
from pytest_trainsafe.core.rungs.rung import Rung


class Packed:
    """Exact numbers: two residues in the bits of each float64."""

    exact = True

    def add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return field.add(left, right)

    def subtract(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return field.add(left, field.negate(right))

    def divide(self, numbers: torch.Tensor, by: int) -> torch.Tensor:
        return self.scale(numbers, Fraction(1, by))

    def scale(self, numbers: torch.Tensor, by: Fraction | float) -> torch.Tensor:
        return field.multiply(numbers, packed(Fraction(by)))

    def ratio(self, numbers: torch.Tensor, reference: torch.Tensor) -> float | None:
        found = field.factor(numbers, reference)
        return None if found is None else float(found)

    def equal(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left.view(torch.int64) == right.view(torch.int64)

    def is_zero(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.view(torch.int64) == 0

    def norm(self, numbers: torch.Tensor) -> float:
        return float((~self.is_zero(numbers.contiguous())).sum()) ** 0.5

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        return torch.stack(unpack(numbers))

    def decode(self, stored: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        first, second = stored
        return ((first << 31) | second).view(torch.float64).reshape(shape)


PACKED = Packed()

RUNG = Rung("packed", "float64", arithmetic_path="tests.support.trace.packed_numbers:PACKED")


def packed_numbers(seed: int, *shape: int) -> torch.Tensor:
    """Numbers that are uniform modulo both primes."""
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randint(1, 1_900_000_000, (2, *shape), generator=generator)
    return ((first << 31) | second).view(torch.float64)
