"""Measures the difference of two tensors: in total, per slice, and along the reference.

All inputs are float64 (or complex128) arrays of one shape.  All results are absolute norms, so that
tensors whose true value is rounding noise need no special case.  NumPy is used instead of torch,
whose threads would compete with the ranks for cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.core.rungs.floating import frobenius

Wide = npt.NDArray[np.float64] | npt.NDArray[np.complex128]
Norms = npt.NDArray[np.float64]

#: Elements processed at a time: large tensors are read from memory once and not copied.
BLOCK = 2**16

#: The block of a matrix that is processed at once, as most are.
_WHOLE = slice(None), slice(None)

_NONE = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Errors:
    """The difference of a tensor from its reference.

    norm: Frobenius norm of the difference.
    slices: for each dimension, the norm of the difference at every index (1-D arrays).
    along: <difference, reference> / <reference, reference>; 0.01 if the value is 1 % too large.
        0 if it was not asked for.
    """

    norm: float
    slices: tuple[Norms, ...]
    along: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a tensor's magnitude.

    power: the sum of the squared magnitudes.
    slices: for each dimension, the norm at every index.
    few: 1 over the square root of the participation ratio, which is the number of elements that
        carry the power; 1 for a single element, near 0 for many of equal size.
    slices_few: `few` of the slice at every index of each dimension; 1 for a slice of zeros.
    """

    power: float
    slices: tuple[Norms, ...]
    few: float
    slices_few: tuple[Norms, ...]


def measure(value: Wide, reference: Wide, *, along: bool = True) -> Errors:
    """The errors of `value` against `reference`, two float64 or complex128 arrays of one shape.

    Without `along`, the projection of the errors on the reference is not computed.
    """
    left, right = _matrix(value), _matrix(reference)
    sums = _Sums(reference.shape)
    product = power = 0.0
    for block in _blocks(*left.shape):
        origin = right[block]
        difference = left[block] - origin
        if along:
            product += _inner(origin, difference)
            power += _inner(origin, origin)
        sums.add(block, squares(difference))
    return Errors(math.sqrt(sums.total), sums.slices(), product / power if power else 0.0)


def spread(array: Wide) -> Spread:
    """The distribution of the magnitude of a float64 or complex128 array."""
    matrix = _matrix(array)
    second, fourth = _Sums(array.shape), _Sums(array.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # values may be infinite or overflow
        for block in _blocks(*matrix.shape):
            squared = squares(matrix[block])
            second.add(block, squared)
            fourth.add(block, np.square(squared))
        norms = second.slices()
        few = math.sqrt(fourth.total) / second.total if second.total else 1.0
        each = tuple(map(_few, fourth.slices(), map(np.square, norms)))
    return Spread(second.total, norms, few, each)


def _few(fourth: Norms, power: Norms) -> Norms:
    return np.divide(fourth, power, out=np.ones_like(power), where=power > 0)


def norm(array: npt.NDArray[np.generic]) -> float:
    """Frobenius norm; integers and booleans count as floats."""
    return frobenius(array if array.dtype.kind in "fc" else array.astype(np.float64))


def finite(array: npt.NDArray[np.generic]) -> bool:
    """Whether every element is finite; always true for integers and booleans."""
    if array.dtype.kind not in "fc":
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum()  # fast; a finite sum implies finite elements
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())


def squares(array: Wide) -> Norms:
    """Squared magnitudes."""
    if array.dtype.kind == "c":
        return np.square(array.real) + np.square(array.imag)
    return np.square(array).real


class _Sums:
    """Sums squared magnitudes over the rows and columns of a tensor viewed as a matrix.

    The matrix has the tensor's last dimension as its columns, and all others as its rows.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.rows = self.columns = _NONE

    def add(self, block: tuple[slice, slice], squared: Norms) -> None:
        """Add the squared magnitudes of one block."""
        # einsum is faster than sum() on short rows and, unlike BLAS, starts no threads.
        rows, columns = np.einsum("ij->i", squared), np.einsum("ij->j", squared)
        if block is _WHOLE:
            self.rows, self.columns = rows, columns
            return
        if self.rows is _NONE:
            self.rows = np.zeros(math.prod(self.shape[:-1]))
            self.columns = np.zeros(self.shape[-1] if self.shape else 1)
        self.rows[block[0]] += rows
        self.columns[block[1]] += columns

    @property
    def total(self) -> float:
        """The sum over all elements."""
        return float(self.rows.sum())

    def slices(self) -> tuple[Norms, ...]:
        """For each dimension, the norm at every index."""
        if not self.shape:
            return ()
        if len(self.shape) == 2:  # no dimension to sum over
            return np.sqrt(self.rows), np.sqrt(self.columns)
        leading = self.rows.reshape(self.shape[:-1])
        dims = range(leading.ndim)
        sums = [leading.sum(axis=tuple(d for d in dims if d != keep)) for keep in dims]
        return tuple(np.sqrt(each) for each in (*sums, self.columns))


def _matrix(array: Wide) -> Wide:
    columns = array.shape[-1] if array.ndim else 1
    rows = math.prod(array.shape[:-1])
    return cast("Wide", np.ascontiguousarray(array).reshape(rows, columns))


def _blocks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    if rows * columns <= BLOCK:
        yield _WHOLE
        return
    wide = min(max(columns, 1), BLOCK)
    high = max(BLOCK // wide, 1)
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            yield slice(top, top + high), slice(left, left + wide)


def _inner(left: Wide | Norms, right: Wide | Norms) -> float:
    """The real part of the inner product of two blocks."""
    return float(np.einsum("ij,ij->", left.conj() if left.dtype.kind == "c" else left, right).real)
