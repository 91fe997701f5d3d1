"""The traces that are judged together at one rung of the precision ladder."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.judges.compare.same_computation import (
    Flaw,
    flaw_of,
    other_inputs,
)
from pytest_trainsafe.trace.reader import Trace

#: The flaws of Runs that measure rounding, by the serial numbers of their traces; cached because
#: every candidate needs them.
_flaws: dict[tuple[int, ...], Flaw | None] = {}


@dataclass(frozen=True, slots=True)
class RungTraces:
    """One candidate and the traces by which it is judged.

    `perturbed` is the reference with noise of the size of rounding, `resampled` the same with other
    samples of the noise, and `shadow` the reference in float64.  If there are none of these, only
    bitwise equality passes.  `dtype` determines how large rounding errors are, and `cast` is the
    cast to it, as `deciding_cast` returns it.
    """

    dtype: str
    candidate: Trace
    reference: Trace
    perturbed: Trace | None = None
    shadow: Trace | None = None
    resampled: tuple[Trace, ...] = ()
    cast: str = ""

    @property
    def numbers(self) -> Arithmetic:
        """The arithmetic of the numbers that were recorded."""
        return self.reference.numbers

    def measures(self) -> list[Trace]:
        """The traces that measure rounding: samples of noise, and a usable float64 reference."""
        traces = (self.perturbed, *self.resampled, self.usable_shadow())
        return [trace for trace in traces if trace is not None]

    def usable_shadow(self) -> Trace | None:
        """The float64 reference, if it did the reference's computation.

        A program may start from other values in float64, draw other random numbers or train on
        other data.  The distance from such a float64 reference would not measure rounding.
        """
        return None if self.shadow_flaw() else self.shadow

    def shadow_flaw(self) -> Flaw | None:
        """Why the float64 reference is not usable; None if it is, or there is none.

        A reference with master copies starts from other parameters, because a float64 run has
        none.
        """
        if self.shadow is None:
            return None
        noisy = self.perturbed.serial if self.perturbed is not None else -1
        key = self.reference.serial, self.shadow.serial, noisy
        if key not in _flaws:
            depends = set()
            if self.perturbed is not None:
                found = other_inputs(self.reference, self.perturbed)
                depends = {flaw.id for flaw in found if flaw.id is not None}
            _flaws[key] = flaw_of(self.reference, self.shadow, depends)
        return _flaws[key]

    def noise_flaw(self) -> Flaw | None:
        """Why the reference with noise did another computation; None if it did not.

        Either the program differs from itself in each Run, or what it draws or feeds to its model
        depends on what it has computed.
        """
        if self.perturbed is None:
            return None
        key = self.reference.serial, self.perturbed.serial
        if key not in _flaws:
            _flaws[key] = flaw_of(self.reference, self.perturbed)
        return _flaws[key]
