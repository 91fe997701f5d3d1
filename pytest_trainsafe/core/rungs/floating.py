"""The arithmetic of floating-point numbers: torch's own, in float64 or complex128."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

#: Vectors of up to this many elements start no BLAS threads; OpenBLAS starts them above 10,000.
UNTHREADED = 2**13


class Floating:
    """Floating-point numbers, which are rounded."""

    exact = False
    sketches = True

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
        array = numbers.numpy()
        flat = np.ascontiguousarray(array).reshape(-1)
        pieces = (flat[at : at + UNTHREADED] for at in range(0, flat.size, UNTHREADED))
        return math.sqrt(sum(float(np.vdot(piece, piece).real) for piece in pieces))

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers

    def decode(self, stored: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return stored


FLOATING = Floating()
