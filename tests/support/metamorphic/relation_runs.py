"""Makes the Runs of a relation in this process, for a program of one rank, without fixtures.

Subprocesses of tests and benchmarks can import it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.runs.execution.run import Run
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import manifest_of, write_manifest


class RelationRuns:
    """Replaces the Runs of a session: makes each once, in this process, when it is waited for."""

    def __init__(self, train: Callable[..., object], folder: Path) -> None:
        self._train, self._folder = train, folder
        self._made: dict[RunSpec, Run] = {}
        self.deciding: set[tuple[str, str]] = set()
        self.notes: dict[str, None] = {}
        self.seconds: dict[str, float] = {}
        self.reused: dict[str, bool] = {}
        self.specs: set[RunSpec] = set()
        self.publish = None

    def start(self, spec: RunSpec) -> Future[Run]:
        """A future whose Run is made when its result is requested."""
        self.specs.add(spec)
        return _Later(lambda: self.get(spec))

    def look_ahead(self) -> None:
        """Do nothing: there is no next test."""

    def get(self, spec: RunSpec, *, timed: bool = False) -> Run:
        """The Run of a spec."""
        if spec not in self._made:
            replayed = "" if spec.replay is None else str(self.get(spec.replay).trace.path)
            folder = self._folder / f"run{len(self._made)}"
            write_manifest(folder / "trace", manifest_of(spec, "cpu"))
            program.record(
                Assignment(spec=spec, trace=str(folder / "trace"), replayed=replayed),
                lambda ctx: self._train(ctx, **spec.keywords),
            )
            self._made[spec] = Run(Trace.open(folder / "trace"), {})
        return self._made[spec]


class _Later(Future[Run]):
    def __init__(self, make: Callable[[], Run]) -> None:
        super().__init__()
        self._make, self._lock = make, threading.Lock()

    def result(self, timeout: float | None = None) -> Run:
        """Make the Run."""
        return self._make()


def fixture_of(
    train: Callable[..., object],
    folder: Path,
    arguments: Mapping[str, object] | None = None,
    axes: Mapping[str, Any] | None = None,
    dtypes: tuple[str, ...] = ("float64",),
) -> Traces:
    """The equivalent of the fixture `reference_trace`, for Runs of one rank in this process."""
    settings = Settings(dtypes=dtypes, localize=0.0)
    point = Point.of(axes or {})
    given = dict(arguments or {})
    case = Case(point, resolve(train), settings, given, given, nodeid="test_it.py::test_it")
    runs: Any = RelationRuns(train, folder)
    return Traces(case, "reference", runs, "full")
