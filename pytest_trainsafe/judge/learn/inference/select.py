"""Which hypotheses become invariants: those with evidence that nothing stronger implies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_trainsafe.judge.learn.conditions import Features, Mark
from pytest_trainsafe.judge.learn.evidence import Counts, together
from pytest_trainsafe.judge.learn.features import CONTEXT_FIELDS, PLACES, TYPES, is_domain
from pytest_trainsafe.judge.learn.inference.deduce import deduce
from pytest_trainsafe.judge.learn.invariant import Hypothesis, Invariant, Support
from pytest_trainsafe.judge.learn.relation import Relation
from pytest_trainsafe.trace.observed.events import Plain

#: So many classes of a family stand for all of them.
MANY_CLASSES = 3
#: Fewer passing examples are no evidence.
LEAST_EXAMPLES = 3


def invariant_of(
    relation: Relation, claim: Hypothesis, evidence: Mapping[str, Counts]
) -> Invariant | str:
    """The invariant of a hypothesis, or why there is none.

    `evidence` has the counts of each program.
    """
    counts = together(evidence.values())
    if sum(passed for _, passed, _ in counts) < LEAST_EXAMPLES:
        return "too little evidence"

    def forbidden(field: str) -> bool:
        return relation.forbidden(claim, field)

    found = deduce(counts, relation.several, forbidden)
    if found is None:
        return "no precondition tells passing from failing examples"
    if found.covered < LEAST_EXAMPLES:
        return "too little evidence"
    support = []
    for program in sorted(evidence):
        examples = sum(
            passed
            for features, passed, _ in evidence[program]
            if found.precondition.holds(features)
        )
        if examples:
            support.append(Support(program, examples))
    kept = [
        features for features, passed, _ in counts if passed and found.precondition.holds(features)
    ]
    return Invariant(
        claim,
        found.precondition,
        tuple(support),
        _within(kept, lambda field: forbidden(field) or _irrelevant(relation, claim, field)),
    )


def _irrelevant(relation: Relation, claim: Hypothesis, field: str) -> bool:
    """Whether a field is one that the claim does not depend on.

    These are the dtypes and graphs of arguments, and the context of what an API does anywhere.
    """
    anywhere = relation.anywhere(claim)
    if field in CONTEXT_FIELDS or field in PLACES:
        return anywhere
    typed = relation.typed and not anywhere
    return not typed and field.startswith("arg.") and field.endswith(TYPES)


def _within(
    examples: Sequence[Features], forbidden: Callable[[str], bool]
) -> tuple[tuple[str, tuple[Plain, ...]], ...]:
    """The values of the fields that limit what the examples speak for."""
    values: dict[str, set[Plain]] = {}
    for features in examples:
        for field, value in features.items():
            if is_domain(field) and not isinstance(value, Mark) and not forbidden(field):
                values.setdefault(field, set()).add(value)
    found = []
    for field in sorted(values):
        # Both truth values, or several classes of a family, are no limit.
        if values[field] >= {True, False} or (
            field == "class" and len(values[field]) >= MANY_CLASSES
        ):
            continue
        found.append((field, tuple(sorted(values[field], key=repr))))
    return tuple(found)


def without_implied(
    found: Sequence[Invariant], relations: Mapping[str, Relation]
) -> tuple[list[Invariant], list[Invariant]]:
    """The invariants that no other implies, and those that one does."""
    by_claim = {each.claim: each for each in found}
    implied: set[Hypothesis] = set()
    for strong in found:
        for claim in relations[strong.claim.relation].weaker(strong.claim):
            weak = by_claim.get(claim)
            # The weaker one says nothing new unless it applies where the stronger does not, or
            # is known from programs that the stronger is not known from.
            if (
                weak is not None
                and weak.precondition.implies(strong.precondition)
                and confidence(strong, relations[strong.claim.relation])
                >= confidence(weak, relations[weak.claim.relation])
            ):
                implied.add(claim)
    for relation in relations.values():
        own = [each for each in found if each.claim.relation == relation.name]
        implied.update(relation.redundant(own))
    kept = [each for each in found if each.claim not in implied]
    return kept, [each for each in found if each.claim in implied]


def confidence(invariant: Invariant, relation: Relation, program: str = "") -> float:
    """How likely the next example, or the next program, keeps the invariant.

    By the rule of succession: of n cases without a failure, (n + 1) / (n + 2).  The cases are
    programs, to which the relation's prior adds some; for a program that the invariant was
    learned from, they are its examples.
    """
    examples = next((each.examples for each in invariant.support if each.program == program), 0)
    programs = max(invariant.programs + relation.prior(invariant.claim) - 1, -1)
    return max((programs + 1) / (programs + 2), (examples + 1) / (examples + 2) if examples else 0)
