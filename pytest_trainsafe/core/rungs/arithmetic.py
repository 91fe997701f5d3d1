"""What alignment and judging ask of the numbers of a rung.

Tensors of integers and booleans are no numbers of a rung, whatever it is: they are added as torch
adds them, and compared exactly.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

import torch


class Arithmetic(Protocol):
    """Computes with tensors of one kind of numbers, on CPUs and outside any dispatch mode.

    Floating-point numbers are float64 or complex128 here.  Numbers without rounding have one
    representation each, so that equal numbers have equal bits; zero has only zero bits.
    """

    #: Whether nothing is rounded, so that only equal values agree, and sketches show nothing.
    exact: bool

    def add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The sum of two tensors, in the dtype of `left`."""

    def subtract(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The difference of two tensors."""

    def divide(self, numbers: torch.Tensor, by: int) -> torch.Tensor:
        """The numbers divided by an integer, such as the number of ranks of a mean."""

    def scale(self, numbers: torch.Tensor, by: Fraction | float) -> torch.Tensor:
        """The numbers multiplied by a rational number."""

    def ratio(self, numbers: torch.Tensor, reference: torch.Tensor) -> float | None:
        """The number by which `reference` is multiplied in `numbers`, as a float.

        For floating-point numbers, the one that leaves the smallest difference.  For exact numbers,
        the one that leaves none.  None if there is no such number, or if `reference` is zero.
        """

    def equal(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """A mask of the elements that are equal."""

    def is_zero(self, numbers: torch.Tensor) -> torch.Tensor:
        """A mask of the elements that are zero."""

    def norm(self, numbers: torch.Tensor) -> float:
        """How large a tensor is, 0 only if every element is zero.

        For floating-point numbers, the Frobenius norm; for exact numbers, which have no size, the
        root of the number of elements that are not zero.
        """

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        """The tensor that a trace stores for `numbers`, of any dtype and shape."""

    def decode(self, stored: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """The numbers of shape `shape` that `encode` was given."""
