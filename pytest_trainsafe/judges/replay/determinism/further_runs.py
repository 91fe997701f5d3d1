"""Makes further Runs of a program, which record the operators of one step.

Called by `cause`, for each question that it asks: do Runs agree if this is the same in all?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import structs

from pytest_trainsafe.judges.replay.determinism.divergence import first_divergence
from pytest_trainsafe.judges.replay.determinism.variation import Environ
from pytest_trainsafe.launch.failure import GroupFailure
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: Starts the Runs of these specs together, waits for them, and returns their traces.
MakeRuns = Callable[[Sequence[RunSpec]], Sequence[Trace]]


class FurtherRuns:
    """Makes Runs of `spec` that record the operators of `step`; each call makes new ones."""

    def __init__(self, spec: RunSpec, step: int, make: MakeRuns) -> None:
        self._spec = structs.replace(spec, operators=max(step, 0))
        self._make = make
        self._made: Counter[tuple[Environ, bool]] = Counter()

    def __call__(self, *environs: Environ, sealed: bool = False) -> Sequence[Trace]:
        """The traces of one new Run in each environment."""
        return self._make([self._next(environ, sealed) for environ in environs])

    def sealed(self, environ: Environ, count: int) -> Sequence[Trace]:
        """The traces of new sealed Runs; fewer, or none, if two of them differ or one fails."""
        traces: list[Trace] = []
        while len(traces) < count:
            try:
                traces += self(environ, environ, sealed=True)
            except GroupFailure:  # the program does not work with a fixed clock or process id
                return []
            if not alike(traces):
                break
        return traces

    def _next(self, environ: Environ, sealed: bool) -> RunSpec:
        self._made[environ, sealed] += 1
        repeat = self._made[environ, sealed]
        return structs.replace(self._spec, repeat=repeat, environ=environ, sealed=sealed)


def alike(traces: Sequence[Trace]) -> bool:
    """Whether all Runs recorded the same bits."""
    return all(first_divergence(traces[0], other) is None for other in traces[1:])
