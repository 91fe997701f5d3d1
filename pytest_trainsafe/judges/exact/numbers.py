"""What alignment and judging ask of exact numbers: an Arithmetic of `core/rungs/arithmetic.py`."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from pytest_trainsafe.arithmetic.packing import in_torch, packed, rational, unpack
from pytest_trainsafe.arithmetic.residues import Residues


class Exact:
    """Computes with packed residues, outside the mode in which a program computes.

    Equal numbers have equal bits, zero has only zero bits, and no number has a size.
    """

    exact = True

    def __init__(self) -> None:
        self._numbers = Residues()

    def add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return in_torch(self._numbers.add(left, right))

    def subtract(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return in_torch(self._numbers.subtract(left, right))

    def divide(self, numbers: torch.Tensor, by: int) -> torch.Tensor:
        return in_torch(self._numbers.divide(numbers, by))

    def scale(self, numbers: torch.Tensor, by: Fraction | float) -> torch.Tensor:
        factor = packed(by) if isinstance(by, Fraction) else self._numbers.lift(by)
        return in_torch(self._numbers.multiply(numbers, factor))

    def ratio(self, numbers: torch.Tensor, reference: torch.Tensor) -> float | None:
        found = self.factor(numbers, reference)
        return None if found is None else float(found)

    def factor(self, numbers: torch.Tensor, reference: torch.Tensor) -> Fraction | None:
        """The rational number by which `reference` is multiplied in `numbers`; None for none.

        It is read from the first element that is zero modulo neither prime: a difference of a root
        and its argument is zero modulo one of them where the signs agree there alone.
        """
        first_residue, second_residue = unpack(reference.contiguous())
        places = ((first_residue != 0) & (second_residue != 0)).reshape(-1).nonzero()
        if not len(places):
            return None
        first = int(places[0])
        quotient = self._numbers.divide(numbers.reshape(-1)[first], reference.reshape(-1)[first])
        if not bool((self._numbers.multiply(reference, quotient) == numbers).all()):
            return None
        return rational(quotient)

    def equal(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left == right

    def is_zero(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers == 0

    def norm(self, numbers: torch.Tensor) -> float:
        return math.sqrt(int((numbers != 0).sum()))

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.contiguous().view(torch.int64)

    def decode(self, stored: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return stored.view(torch.float64).reshape(shape)


EXACT = Exact()
