"""Turns violations into Findings, one for each cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pytest_trainsafe.core.finding import CallSubject, Finding, StepSubject, Subject
from pytest_trainsafe.judges.learn import JUDGE
from pytest_trainsafe.judges.learn.check.cluster import Cluster
from pytest_trainsafe.judges.learn.check.verifier import message, rule_text
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.slips import SLIP
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.watch import Violation
from pytest_trainsafe.judges.learn.wording import in_words

#: The most rules that a finding lists in addition to the first one.
_MAX_LISTED = 5


#: The "file:line" of the project's code that led to each slip, by its rank and text.
Places = Mapping[tuple[int, str], str]


def findings_of(
    causes: Sequence[Cluster],
    relations: Mapping[str, Relation],
    places: Places = MappingProxyType({}),
) -> tuple[Finding, ...]:
    """A failing Finding for each cause, in the same order."""
    return tuple(_finding(each, order, relations, places) for order, each in enumerate(causes))


def _finding(
    cause: Cluster, order: int, relations: Mapping[str, Relation], places: Places
) -> Finding:
    lead, invariant = cause.lead, cause.lead.invariant
    lines = [message(lead, relations)]
    rules = dict.fromkeys(each.invariant for each in cause.others)
    rules.pop(invariant, None)
    if rules:
        lines.append(
            f"  {len(rules)} more invariant{'s' * (len(rules) > 1)} failed, probably for the same "
            "reason:"
        )
        for other in list(rules)[:_MAX_LISTED]:
            explanation = relations[other.claim.relation].explain(other.claim)
            lines.append(f"    {in_words(explanation.sentence)} ({other.id})")
        if len(rules) > _MAX_LISTED:
            lines.append(f"    and {len(rules) - _MAX_LISTED} more")
    evidence: list[tuple[str, str | int | float | bool]] = [
        ("invariant", invariant.id),
        ("rule", rule_text(invariant, relations)),
        ("rank", lead.rank),
        ("programs", invariant.programs),
        ("examples", invariant.examples),
        ("rules broken", cause.rules),
        ("broken by", lead.quoted),
    ]
    if lead.kept:
        evidence.append(("kept by", lead.kept))
    if lead.step is not None:
        evidence.append(("step", lead.step))
    return Finding(
        verdict="fail",
        judge=JUDGE,
        check=f"{JUDGE}:{invariant.claim.relation}",
        message="\n".join(lines),
        subject=_subject(lead),
        evidence=tuple(evidence),
        order=order,
        source=_place(lead, places),
    )


def _place(violation: Violation, places: Places) -> str:
    """Where a slip was noticed; "" for other rules, whose records have no place."""
    record = violation.record
    if not isinstance(record, Change) or record.attribute != SLIP:
        return ""
    return places.get((violation.rank, str(record.after.plain)), "")


def _subject(violation: Violation) -> Subject | None:
    record = violation.record
    if isinstance(record, Call):
        return CallSubject(record.api)
    api = violation.invariant.claim.text("api")
    if api:
        return CallSubject(api)
    return None if violation.step is None else StepSubject(violation.step)
