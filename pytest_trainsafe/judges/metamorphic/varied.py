"""Executes one of a relation's two Runs, and translates its traces for the comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: Maps the RunSpec of the test's Run to that of the Run to execute.
Vary = Callable[[RunSpec], RunSpec]

#: Maps a recorded trace and its dtype to the trace that is judged.
Show = Callable[[Trace, str], Trace]


@dataclass(slots=True, repr=False, eq=False)
class VariedTraces(Traces):
    """The traces of one of the two Runs that a metamorphic relation compares.

    `vary` changes the RunSpec of `owner`, the fixture that the test passed; `show` translates the
    recorded traces.  The inherited field `role` is "reference" for the unchanged Run, on which
    rounding is measured, and "candidate" for the changed Run.
    """

    owner: Traces | None = None
    vary: Vary = field(default=lambda spec: spec)
    show: Show = field(default=lambda trace, dtype: trace)
    _shown: dict[tuple[int, str], Trace] = field(default_factory=dict)

    def spec(self, dtype: str) -> RunSpec:
        """The RunSpec of the Run in `dtype`, with the values of all tensors recorded."""
        assert self.owner is not None
        spec = structs.replace(
            self.owner.spec(dtype), record="full", keep=(), replay=self.replay, repeat=self.repeat
        )
        return self.vary(spec)

    def at(self, dtype: str) -> Trace:
        """The Trace of the Run in `dtype`, translated by `show`."""
        return self._view(Traces.at(self, dtype), dtype)

    def perturbed(self, dtype: str, sample: int = 0) -> Trace:
        """The Trace of the Run with noise of the size of rounding errors, translated as by `at`."""
        return self._view(Traces.perturbed(self, dtype, sample), dtype)

    def _view(self, trace: Trace, dtype: str) -> Trace:
        key = trace.serial, dtype
        if key not in self._shown:
            self._shown[key] = self.show(trace, dtype)
        return self._shown[key]
