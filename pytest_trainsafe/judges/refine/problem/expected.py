"""The relations that results must have: those that the user states, or by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.relation import Relation


@dataclass(frozen=True)
class Expected:
    """What one result of the sequential graph must be.

    With `relation`, exactly this one.  Otherwise a replica or a concat, of the ranks' result
    `name`, which has the same position, or of any of their tensors if `name` is "".  What the ranks
    at one coordinate hold is none of `name` if the others have another result in its place.
    """

    output: str
    relation: Relation | None = None
    name: str = ""

    def met_by(self, relations: Sequence[Relation]) -> Relation | None:
        """The first of the relations that hold which is as expected."""
        for each in relations:
            if each.partial or self.name not in ("", *each.names):
                continue
            if not (self.name and any(step.kind == "at" for step in each.steps)):
                return each
        return None

    def __str__(self) -> str:
        if self.relation is not None:
            return str(self.relation)
        return f"a replica or a concat of {self.name or 'tensors of the ranks'}"


def expectations(problem: Problem) -> list[Expected]:
    """The expectations of all results that are judged.

    If the user states some, these alone.  Results correspond by position if all graphs return
    equally many, and those of the ranks have the same names.
    """
    if problem.outputs:
        return [Expected(name, relation) for name, relation in problem.outputs.items()]
    outputs = problem.sequential.outputs
    by_position = _by_position(problem)
    found: Mapping[str, Expected] = {
        name: Expected(name, name=by_position[number] if by_position else "")
        for number, name in enumerate(outputs)
        if name is not None
    }
    return list(found.values())


def _by_position(problem: Problem) -> list[str] | None:
    results = [graph.outputs for graph in problem.ranks]
    if any(each != results[0] for each in results):
        return None
    if len(results[0]) != len(problem.sequential.outputs):
        return None
    return [name or "" for name in results[0]]
