"""A rung of the precision ladder: the traces that are judged together in one dtype."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.sketched import is_whole, logical_sketch
from pytest_trainsafe.compare.screen import same
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import INITIAL, TensorId


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
            if not _equal(self.reference, self.shadow, id):
                return None
        return self.shadow


def _equal(left: Trace, right: Trace, id: TensorId) -> bool:
    if not (is_whole(left, id) and is_whole(right, id)):
        return same(logical_sketch(left, id), logical_sketch(right, id))
    here, there = (logical_tensor(trace, id).tensor for trace in (left, right))
    return (
        here is not None
        and there is not None
        and here.shape == there.shape
        and not bool((here != there).any())
    )
