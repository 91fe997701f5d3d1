"""The Traces of a test's reference or candidate, recorded when they are requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_choices, rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.failure import raised
from pytest_trainsafe.runs.execution.run import Run
from pytest_trainsafe.runs.requested import RequestedRuns
from pytest_trainsafe.runs.rounding import deciding_cast, rounding_of
from pytest_trainsafe.runs.specs import Role, recorded_at, spec_of
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import Recording, Rewrite, RunSpec, arguments_of


@dataclass(slots=True, repr=False, eq=False)
class Traces:
    """The Traces of a test's reference or candidate, recorded when they are requested.

    `repeat` numbers repetitions of the same Runs, and `sample` Runs at a rung that draws random
    numbers of its own.  `measuring` is the Trace of the reference in the dtype that measures the
    rounding of others, None if there is none.
    `replaying`, `in_full` and `keeping` return copies whose Runs are executed or recorded
    differently; all copies share `runs`, which has every requested Run.
    """

    case: Case
    role: Role
    runs: RequestedRuns
    record: Recording
    keep: tuple[TensorId, ...] = ()
    replay: RunSpec | None = None
    repeat: int = 0
    sample: int = 0
    measuring: Trace | None = None

    def __repr__(self) -> str:
        return f"<{self.role} of {self.case.program.name} at {self.case.point}>"

    def at(self, dtype: str) -> Trace:
        """The Trace of the Run in `dtype`, one of `rung_choices`.

        Waits for the Run.  Raises GroupFailure if its ranks did not finish.
        """
        __tracebackhide__ = True
        if dtype not in rung_choices():
            raise ArgumentError(
                f"{self.role}_trace.at takes one of {listing(rung_choices())}, not {shown(dtype)}"
            )
        return self.runs.get(self.spec(dtype), timed=True).trace

    def spec(self, dtype: str) -> RunSpec:
        """The RunSpec of the Run in `dtype`."""
        own = spec_of(self.case, self.role, dtype)
        return structs.replace(
            own,
            record=recorded_at(dtype, self.record),
            keep=self.keep,
            replay=self.replay or own.replay,
            repeat=self.repeat,
            sample=self.sample,
        )

    def ended_in(self, dtype: str, failure: BaseException) -> bool:
        """Whether the Run in `dtype` has ended with this failure."""
        run = self.runs.start(self.spec(dtype))
        return run.done() and run.exception() is failure

    def fails_again(self, dtype: str, failure: GroupFailure) -> bool:
        """Whether a repetition of the Run in `dtype` raises the same error."""
        try:
            self.runs.start(structs.replace(self.spec(dtype), repeat=self.repeat + 1)).result()
        except GroupFailure as other:
            return bool(raised(other.result) & raised(failure.result))
        return False

    def perturbed(self, dtype: str, sample: int = 0) -> Trace:
        """The Trace of the reference with added noise of the size of rounding errors in `dtype`.

        Each `sample` draws different noise.
        """
        return self.runs.get(self._noisy(dtype, sample)).trace

    def prefetch_perturbed(self, dtype: str, samples: Iterable[int]) -> None:
        """Starts the Runs that `perturbed` will wait for."""
        for sample in samples:
            self.runs.start(self._noisy(dtype, sample))

    def _noisy(self, dtype: str, sample: int) -> RunSpec:
        assert self.role == "reference", self.role
        return self._with_noise(dtype, replace(self, replay=None).rounding(dtype), sample)

    def _with_noise(self, dtype: str, rounding: str, sample: int = 0) -> RunSpec:
        size = rung_named(rounding).epsilon
        return structs.replace(
            self.spec(dtype), perturbation=size, sample=sample, watch_casts=False
        )

    def rounding(self, dtype: str) -> str:
        """The dtype that determines how large rounding errors are in the Run in `dtype`.

        This is `dtype`, or a less precise dtype that the program casts to.
        """
        return rounding_of(self.at(dtype), self._measuring(dtype))

    def cast(self, dtype: str) -> str:
        """The cast that determines `rounding`, as "dtype file:line"; "" if there is none."""
        return deciding_cast(self.at(dtype), self._measuring(dtype))

    def _measuring(self, dtype: str) -> Trace | None:
        """The Trace that measures the rounding in `dtype`; None if none does."""
        return self.measuring if rung_named(dtype).measured_by else None

    def prefetch(self, dtype: str, *, noise: bool = True) -> None:
        """Starts the Runs that `at` will wait for and, with `noise`, those of `perturbed`."""
        for spec in self.needed(dtype, noise=noise):
            self.runs.start(spec)

    def stop_if_hung(self, dtypes: Sequence[str]) -> None:
        """If the Run in one of these dtypes hangs, stops those that were started in later ones.

        The hang settles the verdict, and each later Run would take the timeout again.  A Run that
        is requested nevertheless is launched.
        """
        specs = [self.spec(dtype) for dtype in dtypes]
        for number, spec in enumerate(specs[:-1], 1):
            self.runs.give_up_if_hung(spec, specs[number:])

    def needed(self, dtype: str, *, noise: bool = True) -> list[RunSpec]:
        """The RunSpecs of the Runs that `at` will wait for, if already known.

        With `noise`, those that `perturbed` will wait for too.
        """
        rung = rung_named(dtype)
        # If casts matter, the size of the noise is known after the reference has run.
        noisy = noise and self.role == "reference" and not rung.exact and not rung.casts
        if rung.awaits_decisions and self.replay is None and not self.foreseen():
            # A Run that replays decisions is requested once the decisions are recorded.
            return [self.spec(rung.decided_by or dtype)] if self.role == "reference" else []
        return [self.spec(dtype), *([self._with_noise(dtype, dtype)] if noisy else [])]

    def foreseen(self) -> bool:
        """Whether `needed` can return the specs of all Runs before any of them is recorded.

        False if a Run of the program is known to make decisions, such as the choices of a top-k:
        the Runs that replay these decisions are known only after the decisions are recorded.
        """
        return self._program not in self.runs.deciding

    def has_run(self, dtype: str) -> bool:
        """Whether a Run of the program in `dtype` has finished in this session, in any test."""
        return (*self._program, dtype) in self.runs.scheduler.finished

    def rewritten(
        self,
        dtype: str,
        rewrite: tuple[tuple[str, Rewrite], ...],
        *,
        noise: bool = False,
        at: tuple[Point, Mapping[str, object]] | None = None,
    ) -> Future[Run]:
        """Starts the Run with tensors between modules replaced as `rewrite` says.

        `noise` adds noise of the size of rounding errors; `at` replaces the Point, and the
        program's arguments.
        """
        spec = self._with_noise(dtype, self.rounding(dtype)) if noise else self.spec(dtype)
        spec = structs.replace(spec, rewrite=rewrite, watch_casts=False, record="full", keep=())
        if at is not None:
            point, arguments = at
            axes, mesh = point.values, point.mesh.declared
            spec = structs.replace(spec, axes=axes, mesh=mesh, arguments=arguments_of(arguments))
        return self.runs.start(spec)

    def decided(self, dtype: str) -> RunSpec | None:
        """The spec of the Run whose decisions the other Runs in `dtype` replay; None for none.

        This is the Run in `dtype` if it made decisions that rounding may change, such as the
        choices of a top-k, or a Run of the rung that decides for this one.
        """
        other = rung_named(dtype).decided_by
        if not any(id.kind == "decision" for id in self.at(other or dtype).ids()):
            return None
        self.runs.deciding.add(self._program)
        if other:
            return self.spec(other)
        return self.spec(dtype) if rung_named(self.rounding(dtype)).replays else None

    def replaying(self, decided: RunSpec | None) -> Traces:
        """The same Runs, replaying the decisions of the Run `decided`; `self` if that is None."""
        return self if decided is None else replace(self, replay=decided)

    def measured_by(self, trace: Trace) -> Traces:
        """The same Runs, whose rounding the reference's Run `trace` measures."""
        return replace(self, measuring=trace)

    def in_full(self) -> Traces:
        """The same Runs, recorded with every tensor's values."""
        return replace(self, record="full")

    def keeping(self, ids: tuple[TensorId, ...]) -> Traces:
        """The same Runs, recorded with the values of these tensors."""
        return replace(self, keep=ids)

    def specs(self) -> set[RunSpec]:
        """The RunSpecs of the Runs at every rung, and of all others that the test requested."""
        own = {self.spec(dtype) for dtype in self.case.rungs}
        followed = {spec.replay for spec in own if spec.replay is not None}
        return own | followed | self.runs.specs

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage, summed over the Runs that `at` returned, each counted once."""
        return self.runs.seconds

    @property
    def _program(self) -> tuple[str, str]:
        return self.case.program.path, self.case.program.file


@dataclass(frozen=True, slots=True)
class Runs:
    """The Runs of one test, for its judges: those of its candidate and those of its reference.

    `start`, `get` and `keep` also accept the RunSpec of any other Run.
    """

    candidate: Traces
    reference: Traces

    def start(self, specs: Iterable[RunSpec]) -> None:
        """Launches the Runs that have not been launched yet."""
        for spec in specs:
            self.candidate.runs.start(spec)

    def get(self, spec: RunSpec) -> Run:
        """Waits for a Run and returns it.  Raises GroupFailure if its ranks did not finish."""
        return self.candidate.runs.get(spec)

    def keep(self, spec: RunSpec) -> Path:
        """Copies the trace of a Run to a folder that outlasts the test, and returns its path."""
        return self.candidate.runs.keep(spec)
