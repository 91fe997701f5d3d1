"""Shrinks a problem: the same graphs with small sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_trainsafe.judges.refine.errors import CannotSayError
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step
from pytest_trainsafe.judges.refine.sizes.equations import sizes_of
from pytest_trainsafe.judges.refine.sizes.sites import resized
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


#: For each graph, and each node by name, the small sizes of its sizes.  A negative key is that of
#: a position where a slice starts or ends.
Small = Sequence[Mapping[str, Mapping[int, int]]]


def shrunk(problem: Problem) -> tuple[Problem, Small]:
    """The problem with small sizes, and the small sizes of each graph's nodes.

    Raises CannotSayError if no small sizes keep what must stay true.
    """
    sizes = sizes_of(problem)
    found = solve(sizes)
    if found is None:
        raise CannotSayError(
            f"the shapes of {problem.sequential.name} cannot be shrunk, and are too large to be "
            "evaluated; capture the graphs from a model with small sizes"
        )
    variables = sizes.variables
    small = [
        {
            node.name: {
                **{
                    size: found[variables.find((number, node.name, size))]
                    for size in sorted(variables.local(number, node.name))
                },
                **{
                    -place: found[variables.find(key)]
                    for place, key in variables.positions(number, node.name).items()
                },
            }
            for node in graph.nodes
        }
        for number, graph in enumerate(variables.graphs)
    ]
    return _with_sizes(problem, small), small


def _with_sizes(problem: Problem, small: Small) -> Problem:
    def relations(given: Mapping[str, Relation]) -> dict[str, Relation]:
        return {name: _relation(each, small[0][name]) for name, each in given.items()}

    sequential, *ranks = (
        _resized(graph, own)
        for graph, own in zip((problem.sequential, *problem.ranks), small, strict=True)
    )
    return replace(
        problem,
        sequential=sequential,
        ranks=ranks,
        inputs=relations(problem.inputs),
        outputs=relations(problem.outputs),
        # A bound is a dimension that the shapes show, or smaller than any.
        below={
            name: min(size, *small[0][name].values()) if small[0][name] else size
            for name, size in problem.below.items()
        },
    )


def _relation(relation: Relation, small: Mapping[int, int]) -> Relation:
    def step(each: Step) -> Step:
        parts = tuple((small.get(size, size), copies) for size, copies in each.parts)
        numbers = each.numbers
        if each.kind == "slice":
            numbers = tuple(small.get(size, size) for size in numbers)
        return replace(each, parts=parts, by=small.get(each.by, each.by), numbers=numbers)

    return Relation(tuple(map(step, relation.steps)), relation.names)


def _resized(graph: Graph, small: Mapping[str, Mapping[int, int]]) -> Graph:
    nodes = tuple(resized(graph, node, small[node.name]) for node in graph.nodes)
    return Graph(nodes, graph.outputs, graph.name)
