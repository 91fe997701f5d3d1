"""Finds which relations hold on healthy Runs, or asserts those that a file keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pytest_trainsafe.errors import RelationError
from pytest_trainsafe.judge.metamorphic.judge import judge_relation
from pytest_trainsafe.judge.metamorphic.kept import Kept, add_found, kept_of
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.relations import Order, Recompute, Relation

#: Asserts one relation: `assert_same_by`.
Assert = Callable[[Relation, Traces], None]

#: The relations that a program need not offer.
EVERYWHERE: tuple[Relation, ...] = (Order(), Recompute())


def assert_or_find(
    traces: Traces, file: str, given: Sequence[Relation], assert_one: Assert
) -> None:
    """Write which relations hold, in a healthy test that learns; else assert those that are kept.

    A relation that is given has precedence over one that the program offers under its name.
    """
    case = traces.case
    path = Path(case.settings.root or ".") / file
    offered = (*EVERYWHERE, *case.program.traits.relations, *given)
    known = {relation.name: relation for relation in offered}
    if case.healthy and case.settings.learn:
        add_found(path, find(traces, known.values()))
        return
    applied = False
    reasons = []
    for kept in kept_of(path, case.program.path, known):
        if not kept.holds:
            note = f"{path.name} does not keep the relation {kept.relation} of {kept.program}"
            traces.runs.notes[note] = None
            continue
        try:
            assert_one(known[kept.relation], traces)
        except RelationError as error:
            reasons.append(str(error))
            traces.runs.notes[f"not judged: {error}"] = None
        else:
            applied = True
    if not applied:
        raise RelationError(
            f"no relation that {path} keeps for {case.program.name} applies at {case.point}, so "
            f"nothing could fail: {'; '.join(reasons)}"
        )


def find(traces: Traces, tried: Iterable[Relation]) -> list[Kept]:
    """What is found of each relation at one Point; those that do not apply are left out."""
    case = traces.case
    program = case.program.path
    point = case.point.without("dtype") if traces.role == "candidate" else case.reference_point
    found = []
    for relation in tried:
        try:
            judgement = judge_relation(traces, relation, (), ())
        except RelationError:
            continue
        if judgement.verdict == "pass":
            found.append(Kept(program, relation.name, True, str(point)))
        elif judgement.verdict == "fail":
            first = next(each for each in judgement.findings if each.verdict == "fail")
            where = first.about if first.about is not None else first.message
            found.append(Kept(program, relation.name, False, f"{point}: {where}"))
        # An inconclusive judgement, as of a change that the program does not follow, says nothing.
    return found
