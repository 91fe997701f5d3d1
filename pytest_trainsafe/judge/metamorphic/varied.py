"""The Traces of a relation's two Runs, as the ladder takes a candidate and its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: From the RunSpec of the test's Run to that of the Run to make.
Vary = Callable[[RunSpec], RunSpec]

#: From a recorded trace of a dtype to the trace that is judged.
Show = Callable[[Trace, str], Trace]


@dataclass(slots=True, repr=False, eq=False)
class VariedTraces(Traces):
    """Traces of a Run of the test, changed by `vary` and shown by `show`.

    `owner` is the fixture that the test passed.  The role is "reference" for the Run that rounding
    is measured on, and "candidate" for the other.
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
        """The Trace of the Run in `dtype`, in the terms of the other Run."""
        return self._view(Traces.at(self, dtype), dtype)

    def perturbed(self, dtype: str, sample: int = 0) -> Trace:
        """The same with noise of the size of rounding errors."""
        return self._view(Traces.perturbed(self, dtype, sample), dtype)

    def _view(self, trace: Trace, dtype: str) -> Trace:
        key = trace.serial, dtype
        if key not in self._shown:
            self._shown[key] = self.show(trace, dtype)
        return self._shown[key]
