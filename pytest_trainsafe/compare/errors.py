"""How far a tensor is from another: as a whole, slice by slice, and along it.

All inputs are float64 (or complex128) arrays of one shape; all results are absolute norms, so
that tensors whose true value is rounding noise are judged like any other.  NumPy rather than
torch, whose threads would wait for cores that the ranks are using.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Wide = npt.NDArray[np.float64] | npt.NDArray[np.complex128]
Norms = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """The difference of one tensor from a reference.

    norm: Frobenius norm of the difference.
    slices: for each dimension, the norm of the difference within every index (1-D arrays).
    along: <difference, reference> / <reference, reference>: 0.01 is a value 1 % too large.
    """

    norm: float
    slices: tuple[Norms, ...]
    along: float


def measure(value: Wide, reference: Wide) -> Errors:
    """The errors of `value` against `reference`, both wide and of one shape."""
    difference = value - reference
    squared = squares(difference)
    power = float(squares(reference).sum())
    along = float((difference * reference.conj()).real.sum()) / power if power else 0.0
    return Errors(math.sqrt(squared.sum()), slice_norms(squared), along)


def slice_norms(squared: Norms) -> tuple[Norms, ...]:
    """Along each dimension, the norm within every index, from squared magnitudes."""
    dims = range(squared.ndim)
    return tuple(np.sqrt(squared.sum(axis=tuple(d for d in dims if d != keep))) for keep in dims)


def norm(array: Wide) -> float:
    """Frobenius norm."""
    return math.sqrt(squares(array).sum())


def squares(array: Wide) -> Norms:
    """Squared magnitudes."""
    return np.square(np.abs(array))
