"""A rung of the precision ladder: the traces that are judged together in one dtype."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.sketched import is_whole, logical_sketch
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judge.compare.sketch.screen import same
from pytest_trainsafe.trace.reader import Trace

#: Flaws of a float64 reference.  A reference with master copies has the flaw OTHER_START, because
#: a float64 run has none.
OTHER_START = "starts from different parameters"
OTHER_DRAWS = "draws different random numbers"

#: The flaws of float64 references, by the serial numbers of the two traces; cached because every
#: candidate needs them.
_flaws: dict[tuple[int, int], str] = {}


@dataclass(frozen=True, slots=True)
class Rung:
    """One candidate and the traces by which it is judged.

    `perturbed` is the reference with noise of the size of rounding, `resampled` the same with other
    samples of the noise, and `shadow` the reference in float64.  If there are none of these, only
    bitwise equality passes.
    """

    dtype: str
    candidate: Trace
    reference: Trace
    perturbed: Trace | None = None
    shadow: Trace | None = None
    resampled: tuple[Trace, ...] = ()

    def measures(self) -> list[Trace]:
        """The traces that measure rounding: samples of noise, and a usable float64 reference."""
        traces = (self.perturbed, *self.resampled, self.usable_shadow())
        return [trace for trace in traces if trace is not None]

    def usable_shadow(self) -> Trace | None:
        """The float64 reference, if its parameters and random numbers are the reference's.

        A program that draws its parameters in the working dtype starts from other values in
        float64.  If an operator consumes more random numbers in float64, all later dropout differs.
        The distance from such a float64 reference would not measure rounding.
        """
        return None if self.shadow_flaw() else self.shadow

    def shadow_flaw(self) -> str:
        """Why the float64 reference is not usable; "" if it is, or there is none."""
        if self.shadow is None:
            return ""
        pair = self.reference.serial, self.shadow.serial
        if pair not in _flaws:
            if not self._starts_alike(self.shadow):
                _flaws[pair] = OTHER_START
            elif not self._draws_alike(self.shadow):
                _flaws[pair] = OTHER_DRAWS
            else:
                _flaws[pair] = ""
        return _flaws[pair]

    def _starts_alike(self, shadow: Trace) -> bool:
        for id in self.reference.ids():
            if id.step != INITIAL:
                break
            if not shadow.holders(id) or not _equal(self.reference, shadow, id):
                return False
        return True

    def _draws_alike(self, shadow: Trace) -> bool:
        """Whether every step that draws random numbers draws the same in float64."""
        for ours, theirs in zip(self.reference.ranks, shadow.ranks, strict=False):
            for step, other in zip(ours.steps, theirs.steps, strict=False):
                if step.rng_before != step.rng_after and step.rng_after != other.rng_after:
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
