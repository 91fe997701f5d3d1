"""Selects the hypotheses that become invariants.

They need evidence, and no stronger invariant may imply them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pytest_trainsafe.judges.learn.conditions import Features, Mark
from pytest_trainsafe.judges.learn.events.events import Plain
from pytest_trainsafe.judges.learn.evidence import Counts, together
from pytest_trainsafe.judges.learn.features import CONTEXT_FIELDS, PLACES, TYPES, is_domain
from pytest_trainsafe.judges.learn.inference.deduce import deduce
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant, Support
from pytest_trainsafe.judges.learn.relation import CHOICE, Relation
from pytest_trainsafe.judges.learn.run import Source

#: An invariant that was seen with this many classes of a family is judged on all classes.
MANY_CLASSES = 3
#: The seed in the text of a configuration (`ObservedRun.setting`).
_SEED = re.compile(r"(?<=\bseed)\"?\W{1,2}\d+")
#: The least number of passing examples that count as evidence.
LEAST_EXAMPLES = 3


def invariant_of(
    relation: Relation, claim: Hypothesis, evidence: Mapping[Source, Counts]
) -> Invariant | str:
    """The invariant for the hypothesis `claim`, or the reason why there is none.

    `relation` is the form of the hypothesis.  `evidence` has the counts of passing and failing
    examples of each program in each of its configurations.
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
    support: dict[str, list[tuple[str, int]]] = {}
    for program, setting in sorted(evidence):
        examples = sum(
            passed
            for features, passed, _ in evidence[program, setting]
            if found.precondition.holds(features)
        )
        if examples:
            support.setdefault(program, []).append((setting, examples))
    kept = [
        features for features, passed, _ in counts if passed and found.precondition.holds(features)
    ]
    return Invariant(
        claim,
        found.precondition,
        tuple(Support(program, tuple(settings)) for program, settings in support.items()),
        _within(kept, lambda field: forbidden(field) or _irrelevant(relation, claim, field)),
    )


def _irrelevant(relation: Relation, claim: Hypothesis, field: str) -> bool:
    """Whether the values of `field` in the examples do not limit where a hypothesis is judged.

    True for fields of the context, such as the phase, if `relation.anywhere(claim)` allows every
    context.  True for the dtype and requires_grad of arguments in the same case, and for relations
    that do not depend on them (`Relation.typed` is false).
    """
    anywhere = relation.anywhere(claim)
    if field in CONTEXT_FIELDS or field in PLACES:
        return anywhere
    typed = relation.typed and not anywhere
    return not typed and field.startswith("arg.") and field.endswith(TYPES)


def _within(
    examples: Sequence[Features], forbidden: Callable[[str], bool]
) -> tuple[tuple[str, tuple[Plain, ...]], ...]:
    """The fields that limit where an invariant is judged, with their values in the examples.

    The invariant is judged only where each of these fields has one of its values.  A field for
    which `forbidden` is true sets no such limit, so it is left out.
    """
    values: dict[str, set[Plain]] = {}
    for features in examples:
        for field, value in features.items():
            if is_domain(field) and not isinstance(value, Mark) and not forbidden(field):
                values.setdefault(field, set()).add(value)
    return limits(values)


def limits(values: Mapping[str, set[Plain]]) -> tuple[tuple[str, tuple[Plain, ...]], ...]:
    """The fields that limit where an invariant is judged, of those with these seen values."""
    found = []
    for field in sorted(values):
        # True and False together, or many classes of a family, are no limit.
        if values[field] >= {True, False} or (
            field == "class" and len(values[field]) >= MANY_CLASSES
        ):
            continue
        found.append((field, tuple(sorted(values[field], key=repr))))
    return tuple(found)


def without_implied(
    found: Sequence[Invariant], relations: Mapping[str, Relation]
) -> tuple[list[Invariant], list[Invariant]]:
    """The invariants that no other invariant implies, and those that another one implies."""
    by_claim = {each.claim: each for each in found}
    implied: set[Hypothesis] = set()
    for strong in found:
        for claim in relations[strong.claim.relation].weaker(strong.claim):
            weak = by_claim.get(claim)
            # The weaker one is kept if it applies where the stronger one does not, or if it has
            # more confidence.
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


def confidence(
    invariant: Invariant, relation: Relation, program: str = "", setting: str = ""
) -> float:
    """The estimated probability that the next case satisfies the invariant.

    After n cases without a failure, the probability is (n + 1) / (n + 2), by the rule of
    succession.  The cases are the programs from which the invariant was learned.  With p =
    `relation.prior(invariant.claim)`, n is the number of these programs plus p - 1, but at least
    -1.  The number p says how credible the invariant is before any program was observed; 1 is
    neutral.

    If `program` is the name of one of these programs, a second probability is computed, and the
    larger of the two is returned.  Its cases are the examples of the program in the configuration
    `setting`.  If the invariant was not learned in this configuration, they are those of the
    configurations that differ from it only in the seed, if there are at least two.  Otherwise n is
    the number of those of the program's configurations in which it was learned, plus `CHOICE` - 1,
    or 0 if that is larger.
    """
    programs = max(invariant.programs + relation.prior(invariant.claim) - 1, -1)
    own = next((dict(each.settings) for each in invariant.support if each.program == program), {})
    cases = own.get(setting, 0) or _of_seeds(own, setting) or max(len(own) + CHOICE - 1, 0)
    return max((programs + 1) / (programs + 2), (cases + 1) / (cases + 2) if cases else 0)


def _of_seeds(own: Mapping[str, int], setting: str) -> int:
    """The examples in configurations that differ from `setting` only in the seed; 0 of one."""
    same = [count for each, count in own.items() if _SEED.sub("", each) == _SEED.sub("", setting)]
    return sum(same) if len(same) > 1 else 0
