"""The number systems of the precision ladder: how each rounds, and what that allows.

A rung of the ladder is judged in one of them.  Knows nothing of torch until a dtype is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Precision:
    """One number system.

    `epsilon` is the distance from 1 to the next larger number: the relative size of its rounding,
    and of the noise that measures it.
    `safety` is the allowed error over the measured response.  float64 has one sample of its
    response only, since nothing wider can measure it, and room to spare: a bug is at least 1e-12.
    `floor` is the least response assumed of a tensor, as a share of epsilon times its norm:
    responses are single samples and may be small by luck, those of scalars above all.
    `low` says that rounding hides what only the projection on the reference still shows.
    `safety` and `floor` were calibrated on clean programs; docs/tolerances.md has the figures.
    """

    name: str
    epsilon: float
    safety: float
    floor: float
    low: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which a program computes; "float8" has none, since only casts make it."""
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
        # Of programs that cast to FP8.  Noise of bfloat16, the coarsest dtype that FP8 is used
        # with, takes values across the steps between codes; these make responses vary more.
        Precision("float8", 2.0**-7, safety=6.0, floor=0.25, low=True),
    )
}


def precision(name: str) -> Precision:
    """The number system of a rung, by the name of its dtype; "float8" is that of FP8 codes."""
    return _PRECISIONS[name]
