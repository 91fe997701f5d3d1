"""The Runs of one test in one role, which are made when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_trainsafe.config.settings import Recording
from pytest_trainsafe.core.axes import PARALLEL_AXES
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.failure import raised
from pytest_trainsafe.record.inject.perturb import EPSILON
from pytest_trainsafe.runs.rounding import rounding_of
from pytest_trainsafe.runs.run_key import RunKey
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.trace.reader import Trace

if TYPE_CHECKING:
    from pytest_trainsafe.runs.session import Session


@dataclass(frozen=True, slots=True)
class Run:
    """A finished Run: its Trace, and seconds by stage (launch, train).

    `filed` is the key under which the Run was looked for in the cache, "" for none; `reused`
    says that it was there.
    """

    trace: Trace
    seconds: Mapping[str, float]
    filed: str = ""
    reused: bool = False


#: The sample of a Run without noise that is made once more.
REPEATED = 2


@dataclass(slots=True, repr=False)
class Traces:
    """A test's Runs of one role at every rung, made when they are asked for.

    `reused` says of those that are cached, by key, whether they were there already.
    """

    case: Case
    role: str
    session: Session
    record: Recording
    keep: tuple[TensorId, ...] = ()
    replay: RunKey | None = None
    publish: Callable[[PointSummary], None] | None = None
    reused: dict[str, bool] = field(default_factory=dict)
    more: list[Traces] = field(default_factory=list)
    #: Whether any of the Runs was asked for.
    looked_at: bool = False
    extra: set[RunKey] = field(default_factory=set)
    _spent: dict[RunKey, Mapping[str, float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.role} of {self.case.program.name} at {self.case.point}>"

    def at(self, dtype: str) -> Trace:
        """The Trace of the Run in `dtype`.  Raises GroupFailure when its ranks did not finish."""
        key = self._key(dtype)
        run = self._run(key)
        self._spent[key] = run.seconds
        return run.trace

    def ended_in(self, dtype: str, failure: BaseException) -> bool:
        """Whether it is the Run in `dtype` that ended in this failure."""
        run = self.session.run(self._key(dtype))
        return run.done() and run.exception() is failure

    def fails_again(self, dtype: str, failure: GroupFailure) -> bool:
        """Whether the Run in `dtype`, made once more, raises what it raised before."""
        again = replace(self._key(dtype), sample=REPEATED)
        self.extra.add(again)
        try:
            self.session.run(again).result()
        except GroupFailure as other:
            return bool(raised(other.result) & raised(failure.result))
        return False

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage of the Runs that `at` gave out, each Run's once."""
        total: dict[str, float] = {}
        for each in self._spent.values():
            for stage, spent in each.items():
                total[stage] = total.get(stage, 0.0) + spent
        return total

    def perturbed(self, dtype: str, sample: int = 0) -> Trace:
        """The reference's response to noise of the size of rounding in `dtype`.

        Every `sample` is a response to other noise of that size.
        """
        return self._run(self._noisy(dtype, sample)).trace

    def prefetch_perturbed(self, dtype: str, samples: Iterable[int]) -> None:
        """Launch what `perturbed` will ask for, without waiting for it."""
        for sample in samples:
            self.session.run(self._noisy(dtype, sample))

    def _noisy(self, dtype: str, sample: int) -> RunKey:
        assert self.role == "reference", self.role
        narrowed = replace(self, replay=None).rounding(dtype)
        return replace(self._key(dtype, EPSILON[narrowed]), sample=sample)

    def rounding(self, dtype: str) -> str:
        """The dtype whose rounding limits a rung: narrower than `dtype` where the program casts."""
        return rounding_of(self.at(dtype))

    def prefetch(self, dtype: str) -> None:
        """Launch what `at` and `perturbed` will ask for, without waiting for it."""
        for key in self.needed(dtype):
            self.session.run(key)

    def needed(self, dtype: str) -> list[RunKey]:
        """The Runs that `at` and `perturbed` will ask for, as far as is known before them."""
        noisy = self.role == "reference" and dtype != "float64"
        if dtype != "float64" and self.replay is None and not self.foreseen():
            # What replays decisions is asked for when there are some.
            return [self._key(dtype)] if self.role == "reference" else []
        return [self._key(dtype), *([self._key(dtype, EPSILON[dtype])] if noisy else [])]

    def foreseen(self) -> bool:
        """Whether `needed` tells all Runs, as far as is known: none replays another's decisions."""
        return self._program not in self.session.deciding

    def rewritten(
        self, dtype: str, rewrite: str, *, noise: bool = False, point: Point | None = None
    ) -> Future[Run]:
        """The Run with what flows between modules rewritten as `rewrite` says.

        `noise` perturbs it, `point` has it at another Point.
        """
        perturbation = EPSILON[self.rounding(dtype)] if noise else 0.0
        key = replace(
            self._key(dtype, perturbation),
            rewrite=rewrite,
            watch_casts=False,
            record="full",
            keep=(),
        )
        if point is not None:
            key = replace(key, point=point)
        self.extra.add(key)
        return self.session.run(key)

    def decided(self, dtype: str) -> RunKey | None:
        """The Run in `dtype` if it made decisions that rounding may turn: others replay them."""
        if not any(id.kind == "decision" for id in self.at(dtype).ids()):
            return None
        self.session.deciding.add(self._program)
        return self._key(dtype) if self.rounding(dtype) != "float64" else None

    def replaying(self, decided: RunKey | None) -> Traces:
        """The same Runs with the decisions of another in the place of their own."""
        if decided is None:
            return self
        again = replace(self, replay=decided, more=[])
        self.more.append(again)
        return again

    def in_full(self) -> Traces:
        """The same Runs with every tensor's values."""
        again = replace(self, record="full", more=[], extra=set())
        self.more.append(again)
        return again

    def keeping(self, ids: tuple[TensorId, ...]) -> Traces:
        """The same Runs with the values of these tensors."""
        again = replace(self, keep=ids, more=[], extra=set())
        self.more.append(again)
        return again

    def keys(self) -> set[RunKey]:
        """The Runs at every rung, those that were made again, and those that sought a fault."""
        own = {self._key(dtype) for dtype in self.case.rungs}
        return own.union(self.extra, *(again.keys() for again in self.more))

    @property
    def _program(self) -> tuple[str, str]:
        return self.case.program.path, self.case.program.file

    def _run(self, key: RunKey) -> Run:
        self.looked_at = True
        run = self.session.run(key).result()
        if run.filed:
            self.reused[run.filed] = run.reused
        return run

    def _key(self, dtype: str, perturbation: float = 0.0) -> RunKey:
        candidate = self.role == "candidate"
        point = self.case.point.without("dtype")
        if not candidate:
            point = self.case.reference_point
        arguments = self.case.candidate_arguments if candidate else self.case.arguments
        # A Run of a single device is a reference too, and need not run twice.
        program = self.case.program
        alike = not program.traits.candidate and point == point.without(*PARALLEL_AXES)
        trusted = not candidate or alike
        script = program.script
        settings = self.case.settings
        return RunKey(
            program=program.path,
            file=program.file,
            script=script.path if script is not None else "",
            script_args=tuple(script.args) if script is not None else (),
            arguments=json.dumps(dict(arguments), sort_keys=True),
            point=point,
            dtype=dtype,
            perturbation=perturbation,
            trusted=trusted,
            watch_casts=perturbation == 0.0 and trusted,
            seed=settings.seed,
            device=settings.device,
            timeout=settings.timeout,
            record=self.record,
            keep=self.keep,
            replay=self.replay,
            record_kinds=settings.record_kinds,
            record_modules=settings.record_modules,
            rng=settings.rng,
            adapters=(*BUILT_IN, *settings.adapters),
            inputs=program.traits.inputs,
        )
