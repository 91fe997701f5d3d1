"""A rung of the precision ladder: the traces that are judged together in one dtype."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.sketched import is_whole, logical_sketch
from pytest_trainsafe.compare.screen import same
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import INITIAL, TensorId

#: Whether a reference and a shadow start alike, by their serials: every candidate asks.
_same_start: dict[tuple[int, int], bool] = {}


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
        pair = self.reference.serial, self.shadow.serial
        if pair not in _same_start:
            _same_start[pair] = self._starts_alike(self.shadow)
        return self.shadow if _same_start[pair] else None

    def _starts_alike(self, shadow: Trace) -> bool:
        for id in self.reference.ids():
            if id.step != INITIAL:
                break
            if not shadow.holders(id) or not _equal(self.reference, shadow, id):
                return False
        return True


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
