"""The number systems in which tests are judged: how each rounds, and how large errors may be.

A test is judged in one dtype after another, the widest first.  This sequence is the precision
ladder, and each of its dtypes is a rung.  Imports torch only when a dtype is requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Precision:
    """One number system.

    `epsilon` is the distance from 1 to the next larger number: the relative size of a rounding
    error, and of the noise that is injected to measure how a program responds to rounding.
    `safety` is the ratio of the allowed error to the measured response.  float64 has the largest
    ratio for two reasons.  In float64, only noise measures the response; in other dtypes, the
    distance from a float64 run measures it as well.  And the smallest errors that bugs cause in
    float64, 1e-12, are much larger than the allowed error even with this ratio.
    `floor` sets the smallest response that is assumed for a tensor: `floor * epsilon * norm`, where
    `norm` is the tensor's norm.  A response that is measured with few samples of noise can be too
    small by chance, especially for a scalar.
    `low` is true for low precision, in which the norm of the rounding errors may exceed the norm of
    an error that multiplies all values by, say, 1.01.  In low precision, the projection of the
    error on the reference is judged as well, because the projection shows such a factor.
    `safety` and `floor` were calibrated on clean programs; docs/tolerances.md has the figures.
    """

    name: str
    epsilon: float
    safety: float
    floor: float
    low: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype that is called `name`, such as torch.float32 for "float32".

        Raises AssertionError for "float8": torch has several FP8 dtypes and none of this name.
        """
        import torch

        found = getattr(torch, self.name, None)
        assert isinstance(found, torch.dtype), self.name
        return found


_PRECISIONS = {
    each.name: each
    for each in (
        Precision("float64", 2.0**-52, safety=30.0, floor=0.5),
        Precision("float32", 2.0**-23, safety=10.0, floor=0.5),
        Precision("bfloat16", 2.0**-7, safety=4.0, floor=0.125, low=True),
        Precision("float16", 2.0**-10, safety=4.0, floor=0.125, low=True),
        # For programs that cast to FP8.  The noise is that of bfloat16, the coarsest dtype that
        # FP8 is used with.  It moves some values to another FP8 code, so that responses vary more.
        Precision("float8", 2.0**-7, safety=6.0, floor=0.25, low=True),
    )
}


def precision(name: str) -> Precision:
    """The number system with this name, such as "bfloat16"; "float8" stands for FP8."""
    return _PRECISIONS[name]
