"""Makes the Runs that a judge asks for, in this process and with one rank each."""

from __future__ import annotations

from collections.abc import Callable
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


class RunsHere:
    """Replaces the Runs of a session: makes each once, when its trace is first asked for."""

    def __init__(self, train: Callable[..., object], folder: Path) -> None:
        self._train, self._folder = train, folder
        self._made: dict[RunSpec, Path] = {}
        self.notes: dict[str, None] = {}
        self.publish = None

    def start(self, spec: RunSpec) -> None:
        """Do nothing: a Run is made only in `get`."""

    def get(self, spec: RunSpec, *, timed: bool = False) -> Run:
        """The Run of a spec."""
        if spec not in self._made:
            folder = self._made[spec] = self._folder / f"run{len(self._made)}"
            write_manifest(folder / "trace", manifest_of(spec, "cpu"))
            of = None if spec.resume is None else spec.resume.of
            program.record(
                Assignment(
                    spec=spec,
                    trace=str(folder / "trace"),
                    checkpoint=str((folder if of is None else self._made[of]) / "checkpoint"),
                ),
                lambda ctx: self._train(ctx, **spec.keywords),
            )
        return Run(Trace.open(self._made[spec] / "trace"), {})


def traces_here(
    train: Callable[..., object],
    folder: Path,
    settings: Settings | None = None,
    program: Callable[..., object] | None = None,
) -> Traces:
    """The equivalent of the fixture `candidate_trace`, for Runs of one rank in this process.

    `program` is the function that names the program if `train` is a wrapper of it.
    """
    found = resolve(program or train)
    case = Case(Point.of({}), found, settings or Settings(dtypes=("float64",)))
    runs: Any = RunsHere(train, folder)
    return Traces(case, "candidate", runs, "full")
