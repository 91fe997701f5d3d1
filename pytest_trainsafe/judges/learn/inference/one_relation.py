"""Learns the invariants of one relation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.evidence import Counts, Evidence, together
from pytest_trainsafe.judges.learn.inference.select import invariant_of, without_implied
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judges.learn.registry import load_relation
from pytest_trainsafe.judges.learn.run import Source


@dataclass(frozen=True, slots=True)
class LearnedRelation:
    """The invariants of one relation, and the number of dropped hypotheses for each reason."""

    invariants: tuple[Invariant, ...]
    dropped: Mapping[str, int]


def learn_relation(path: str, runs: Sequence[tuple[Source, Sequence[Frame]]]) -> LearnedRelation:
    """Learn the invariants of one relation, given by its import path.

    `runs` has, for each run, its program and configuration, and the prepared tables of its ranks.
    """
    relation = load_relation(path)
    claims: dict[Hypothesis, set[str]] = {}
    for (program, _), frames in runs:
        for claim in relation.hypotheses(frames):
            claims.setdefault(claim, set()).add(program)
    ordered = sorted(claims, key=lambda claim: claim.order)
    evidence: dict[Hypothesis, dict[Source, Counts]] = {}
    for source, frames in runs:
        counted = Evidence()
        fitting = ordered
        if relation.named:
            fitting = [claim for claim in ordered if source[0] in claims[claim]]
        relation.examples(frames, fitting, counted)
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
