"""A rung of the precision ladder: the traces that are judged together in one dtype."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import INITIAL


@dataclass(frozen=True, slots=True)
class Rung:
    """One candidate and what it is judged by.

    `perturbed` is the reference under noise of the size of rounding, `shadow` the reference in
    float64.  Without both, only equal bits are known to be right.
    """

    dtype: str
    candidate: Trace
    reference: Trace
    perturbed: Trace | None = None
    shadow: Trace | None = None

    def usable_shadow(self) -> Trace | None:
        """The shadow, if it started from the reference's own parameters.

        A program that draws its parameters in the working dtype starts elsewhere in float64;
        its shadow's distance would then measure the start, not the rounding.
        """
        if self.shadow is None:
            return None
        for id in self.reference.ids():
            if id.step != INITIAL:
                break
            if not self.shadow.holders(id):
                return None
            here, there = (logical_tensor(t, id).tensor for t in (self.reference, self.shadow))
            if (
                here is None
                or there is None
                or here.shape != there.shape
                or bool((here != there).any())
            ):
                return None
        return self.shadow
