"""Changes what a Run computes: noise that measures rounding, and values that isolate a fault."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.instrument.generated import GeneratedGradients
from pytest_trainsafe.judges.compare.instrument.jumps import StableJumps
from pytest_trainsafe.judges.compare.instrument.perturb import Noise
from pytest_trainsafe.judges.compare.instrument.perturb_operations import OperationNoise
from pytest_trainsafe.judges.compare.instrument.rewrite import Rewriter
from pytest_trainsafe.record.hooks.changes import Changes
from pytest_trainsafe.record.instrument import Instrument, Recording, WatchedModel


class Changing(Instrument):
    """Makes the changes that the Run's `perturbation` and `rewrite` ask for."""

    name = "compare"

    def __init__(self, recorder: Recording) -> None:
        self._recorder = recorder
        self._spec = recorder.spec
        self._noisy: OperationNoise | None = None

    def around(self) -> AbstractContextManager[object]:
        """Keeps functions that jump from turning noise into another decision."""
        if self._spec.perturbation and not rung_named(self._spec.dtype).replays:
            return StableJumps()
        return nullcontext()

    def changes(self, watched: WatchedModel) -> Changes:
        """Noise on the outputs of modules, rewritten outputs, and generated main gradients."""
        spec, recorder = self._spec, self._recorder
        noise = Noise(spec.perturbation, spec.noise_seed) if spec.perturbation else None
        if noise is not None and spec.noisy_operations:
            self._noisy, noise = OperationNoise(noise), None
        if not spec.rewrite:
            return Changes(noise)
        rewriter = Rewriter(
            spec,
            spec.point.coordinates(recorder.writer.rank),
            recorder.clock,
            recorder.writer,
            watched.annotations,
            noise,
            recorder.origins,
        )
        return Changes(noise, rewriter, GeneratedGradients(rewriter))

    def in_step(self, number: int) -> AbstractContextManager[object]:
        """Adds noise to every operation, if the Run asks for it."""
        return self._noisy or nullcontext()
