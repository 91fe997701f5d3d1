"""The arithmetic of floating-point numbers: torch's own, in float64 or complex128."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from pytest_trainsafe.core.rungs.arithmetic import Arithmetic

#: Vectors of up to this many elements start no BLAS threads; OpenBLAS starts them above 10,000.
UNTHREADED = 2**13


def frobenius(array: npt.NDArray[np.generic]) -> float:
    """The Frobenius norm of floating-point or complex numbers."""
    flat = np.ascontiguousarray(array).reshape(-1)
    pieces = (flat[at : at + UNTHREADED] for at in range(0, flat.size, UNTHREADED))
    return math.sqrt(sum(float(np.vdot(piece, piece).real) for piece in pieces))


class Floating:
    """Floating-point numbers, which are rounded."""

    exact = False

    def add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right.to(left.dtype)

    def subtract(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left - right

    def divide(self, numbers: torch.Tensor, by: int) -> torch.Tensor:
        return numbers / by

    def scale(self, numbers: torch.Tensor, by: Fraction | float) -> torch.Tensor:
        return numbers * float(by)

    def ratio(self, numbers: torch.Tensor, reference: torch.Tensor) -> float | None:
        power = float(reference.abs().square().sum())
        return float((numbers * reference.conj()).real.sum()) / power if power else None

    def equal(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left == right

    def is_zero(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers == 0

    def norm(self, numbers: torch.Tensor) -> float:
        return frobenius(numbers.numpy())

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers

    def decode(self, stored: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return stored


FLOATING = Floating()


def arithmetic_of(dtype: torch.dtype, numbers: Arithmetic) -> Arithmetic:
    """The arithmetic of tensors of a dtype at a rung with these numbers.

    Integers and booleans are no numbers of a rung: torch's arithmetic is theirs.
    """
    return numbers if dtype.is_floating_point or dtype.is_complex else FLOATING
