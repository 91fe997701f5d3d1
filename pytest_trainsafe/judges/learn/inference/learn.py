"""Learns invariants from runs of healthy programs.

Each relation proposes hypotheses from every run and finds the examples of each hypothesis in every
run.  Then a precondition is deduced for each hypothesis, and those with enough evidence become
invariants.  Relations do not depend on each other, so they are the unit of work for processes,
progress and resumption.  The result does not depend on the number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.learn.inference.jobs import Progress, run_jobs
from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.registry import relation_paths
from pytest_trainsafe.judges.learn.run import ObservedRun


class LearnError(TrainsafeError, ValueError):
    """Raised for runs from which nothing can be learned."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Invariants in a stable order, and the programs that they were learned from.

    `programs` has the versions of the libraries that each program ran with.  `dropped` has the
    number of hypotheses that did not become invariants, for each reason.
    """

    invariants: tuple[Invariant, ...]
    programs: Mapping[str, Mapping[str, str]]
    dropped: Mapping[str, int]


def learn(
    runs: Sequence[ObservedRun],
    *,
    own: Sequence[str] = (),
    jobs: int = 1,
    progress: Progress | None = None,
    keep: Path | None = None,
) -> Learned:
    """Learn invariants from healthy runs.

    `own` has import paths of a project's relations.  If `jobs` is above one, that many processes
    work on the relations.  With `keep`, the result of each relation is kept in that folder, and a
    later call with the same runs reads it from there.

    Raises LearnError for runs without records or steps.
    """
    _require_steps(runs)
    paths = relation_paths(own)
    results = run_jobs(runs, paths, jobs, progress, keep)
    dropped: Counter[str] = Counter()
    invariants: list[Invariant] = []
    for result in results:
        invariants += result.invariants
        dropped.update(result.dropped)
    programs: dict[str, Mapping[str, str]] = {}
    for run in sorted(runs, key=lambda run: run.program):
        programs[run.program] = {**programs.get(run.program, {}), **run.versions}
    return Learned(
        tuple(sorted(invariants, key=lambda each: each.claim.order)),
        programs,
        dict(sorted(dropped.items())),
    )


def _require_steps(runs: Sequence[ObservedRun]) -> None:
    if not runs:
        raise LearnError("there is no run to learn from; give the runs of at least one program")
    for run in runs:
        if not run.tables or not all(len(table.steps["step"]) for table in run.tables):
            raise LearnError(
                f"the run of {run.program!r} has no complete step to learn from; train for "
                "at least two steps, in `ctx.step()` or with an optimizer that is observed"
            )
