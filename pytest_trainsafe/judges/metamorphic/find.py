"""Finds which relations hold on healthy Runs, or asserts those that a file lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import RelationError
from pytest_trainsafe.judges.metamorphic.judge import judge_relation
from pytest_trainsafe.judges.metamorphic.kept import Kept, add_found, kept_of
from pytest_trainsafe.judges.metamorphic.relations import Order, Recompute, Relation
from pytest_trainsafe.runs.traces import Traces

#: A function that asserts one relation, as `assert_same_by` does.
Assert = Callable[[Relation, Traces], None]

#: The relations that are known for every program, even if it does not offer them.
EVERYWHERE: tuple[Relation, ...] = (Order(), Recompute())


def assert_or_find(
    traces: Traces, file: str, given: Sequence[Relation], assert_one: Assert
) -> None:
    """Assert the relations that `file` lists as holding for the program.

    A healthy test under `--trainsafe-learn` instead tries all known relations and writes the
    results to the file.  A relation in `given` has precedence over one of the same name that the
    program offers.  Raises RelationError if no relation applies at the test's Point.
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
            note = (
                f"{path.name} says that the relation {shown(kept.relation)} does not hold for "
                f"{kept.program}, so it was not judged"
            )
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
            f"none of the relations that {path} lists for {case.program.name} applies at "
            f"{case.point}, so the test checks nothing: {'; '.join(reasons)}. Run the test at a "
            "Point where one of them applies, or assert a relation that applies here"
        )


def find(traces: Traces, tried: Iterable[Relation]) -> list[Kept]:
    """Try relations at the Point of `traces`, and return whether each holds.

    Relations that do not apply there, or whose judgement is inconclusive, are left out.
    """
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
