"""Learns invariants from runs of healthy programs.

Each relation proposes hypotheses from every run and finds the examples of each hypothesis in every
run.  Then a precondition is deduced for each hypothesis, and those with enough evidence become
invariants.  Relations do not depend on each other, so they are the unit of work for processes,
progress and resumption.  The result does not depend on the number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.evidence import Counts, Evidence, together
from pytest_trainsafe.judges.learn.inference.jobs import run_jobs
from pytest_trainsafe.judges.learn.inference.select import invariant_of, without_implied
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judges.learn.registry import load_relation, relation_paths
from pytest_trainsafe.judges.learn.run import ObservedRun, Source

#: Called with the number of finished relations, the number of all relations, and the name of the
#: relation that finished last.
Progress = Callable[[int, int, str], None]


class LearnError(TrainsafeError, ValueError):
    """Raised for runs from which nothing can be learned."""


@dataclass(frozen=True, slots=True)
class LearnedRelation:
    """The invariants of one relation, and the number of dropped hypotheses for each reason."""

    invariants: tuple[Invariant, ...]
    dropped: Mapping[str, int]


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


def learn_relation(path: str, runs: Sequence[tuple[Source, Sequence[Frame]]]) -> LearnedRelation:
    """Learn the invariants of one relation, given by its import path.

    `runs` has, for each run, its program and configuration, and the prepared tables of its ranks.
    """
    relation = load_relation(path)
    claims: set[Hypothesis] = set()
    for _, frames in runs:
        claims.update(relation.hypotheses(frames))
    ordered = sorted(claims, key=lambda claim: claim.order)
    evidence: dict[Hypothesis, dict[Source, Counts]] = {}
    for source, frames in runs:
        counted = Evidence()
        relation.examples(frames, ordered, counted)
        for claim, counts in counted.counts().items():
            known = evidence.setdefault(claim, {})
            known[source] = together([known.get(source, []), counts])
    found: list[Invariant] = []
    dropped: Counter[str] = Counter()
    for claim in ordered:
        made = invariant_of(relation, claim, evidence.get(claim, {}))
        if isinstance(made, Invariant):
            found.append(made)
        else:
            dropped[made] += 1
    kept, implied = without_implied(found, {relation.name: relation})
    if implied:
        dropped["implied by a stronger invariant"] += len(implied)
    return LearnedRelation(tuple(kept), dict(dropped))


def _require_steps(runs: Sequence[ObservedRun]) -> None:
    if not runs:
        raise LearnError("there is no run to learn from; give the runs of at least one program")
    for run in runs:
        if not run.tables or not all(len(table.steps["step"]) for table in run.tables):
            raise LearnError(
                f"the run of {run.program!r} has no complete step to learn from; train for "
                "at least two steps, in `ctx.step()` or with an optimizer that is observed"
            )
