"""Shrinks a problem: the same graphs with small sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from pytest_trainsafe.judges.refine.errors import CannotSayError
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.problem import Problem
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step
from pytest_trainsafe.judges.refine.sizes.equations import sizes_of
from pytest_trainsafe.judges.refine.sizes.sites import changed
from pytest_trainsafe.judges.refine.sizes.solve import solve

#: The most elements of all tensors together that are evaluated as they are.
AFFORDABLE = 1 << 21


def affordable(problem: Problem) -> bool:
    """Whether the graphs can be evaluated in the sizes that they have."""
    total = sum(
        math.prod(node.shape)
        for graph in (problem.sequential, *problem.ranks)
        for node in graph.nodes
        if node.shape is not None
    )
    return total <= AFFORDABLE


def shrunk(problem: Problem) -> tuple[Problem, dict[int, int]]:
    """The problem with small sizes, and the small size of each.

    Raises CannotSayError if no small sizes keep what must stay true.
    """
    small = solve(sizes_of(problem))
    if small is None:
        raise CannotSayError(
            f"the shapes of {problem.sequential.name} cannot be shrunk, and are too large to be "
            "evaluated; capture the graphs from a model with small sizes"
        )
    return with_sizes(problem, small), small


def with_sizes(problem: Problem, small: Mapping[int, int]) -> Problem:
    """The problem in which each size is replaced; what is no size of it stays."""

    def change(size: int) -> int:
        return small.get(size, size)

    def relation(each: Relation) -> Relation:
        return Relation(tuple(map(step, each.steps)), each.names)

    def step(each: Step) -> Step:
        parts = tuple((change(size), copies) for size, copies in each.parts)
        numbers = tuple(map(change, each.numbers)) if each.kind == "slice" else each.numbers
        by = change(each.by) if each.by > 1 else each.by
        return replace(each, parts=parts, by=by, numbers=numbers)

    return replace(
        problem,
        sequential=_resized(problem.sequential, small),
        ranks=[_resized(graph, small) for graph in problem.ranks],
        inputs={name: relation(each) for name, each in problem.inputs.items()},
        outputs={name: relation(each) for name, each in problem.outputs.items()},
        below={name: change(size) for name, size in problem.below.items()},
    )


def _resized(graph: Graph, small: Mapping[int, int]) -> Graph:
    nodes = tuple(changed(graph, node, lambda size: small.get(size, size)) for node in graph.nodes)
    return Graph(nodes, graph.outputs, graph.name)
